"""Calls that are refused, or whose callers leave, before the engine has them; and what it costs."""

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import httpx
import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.config import Key
from jitney.core import limits as core_limits
from jitney.core.backend import Segment
from jitney.core.params import Constraint
from jitney.server import limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import WAIT_S, World, check_error, read_all, request_bytes, wait_until
from tests.e2e.server.pace import StillClock

SLOW = FakeSettings(slots=8, eos_period=0, kv_tokens=65_536, tick_s=0.02, sleeps=True)
LONG = {"prompt": "a", "max_tokens": 4000}
SHORT = {"prompt": "a", "max_tokens": 1}
SECRET = "a-secret-of-the-tests"


class Door:
    """A backend that tokenises and compiles nothing while the door is shut."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.asked: list[str] = []
        self.is_open = threading.Event()
        self.is_open.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        self.asked.append("encode")
        assert self.is_open.wait(WAIT_S), "nobody opened"
        tokens: list[int] = self._backend.encode(texts)
        return tokens

    def prepare(self, constraint: Constraint) -> None:
        self.asked.append("prepare")
        assert self.is_open.wait(WAIT_S), "nobody opened"
        self._backend.prepare(constraint)


Put = TypeVar("Put")


def putting(kind: Callable[[Any], Put]) -> tuple[Callable[[Any], Put], list[Put]]:
    """How to put one of a kind before a backend, and those that were put."""
    made: list[Put] = []

    def wrap(backend: Any) -> Put:
        made.append(kind(backend))
        return made[-1]

    return wrap, made


Doors = tuple[Callable[[Any], Door], list[Door]]


@pytest.fixture
def door() -> Doors:
    """Doors, which are open at first."""
    return putting(Door)


def test_who_leaves_at_the_door_is_not_waited_for(start: Start, door: Doors) -> None:
    """Guards the door: the work of those who left before their turn is never begun."""
    server = start(World(wrap=door[0]))
    door[1][0].is_open.clear()
    connections = [server.connect() for _ in range(limits.WORKER_THREADS + 4)]
    for connection in connections:
        connection.sendall(request_bytes("/v1/completions", LONG, close=False))
    wait_until(lambda: server.load == len(connections), "they did not all arrive")
    for connection in connections:
        connection.close()
    wait_until(lambda: server.load == 0, "they are served though nobody waits")
    door[1][0].is_open.set()
    server.check_idle()
    assert server.service.engine.stats().completed_requests == 0
    assert server.service.engine.stats().cancelled_requests == 0


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("walk", "ride")
]
ASKED = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("path", "body", "begun"),
    [
        ("/v1/completions", {**SHORT, "structured_outputs": {"regex": "a+"}}, "encode"),
        ("/v1/chat/completions", {**ASKED, "response_format": {"type": "json_object"}}, "encode"),
        ("/v1/chat/completions", {**ASKED, "tools": TOOLS}, "prepare"),
    ],
)
def test_nothing_is_compiled_for_who_left(
    start: Start, door: Doors, path: str, body: dict[str, Any], begun: str
) -> None:
    """Guards those who wait to compile: what was begun is ended, and no more is begun."""
    server = start(World(wrap=door[0]))
    door[1][0].is_open.clear()
    connection = server.connect()
    connection.sendall(request_bytes(path, body, close=False))
    wait_until(lambda: door[1][0].asked == [begun], "it did not begin")
    connection.close()
    wait_until(lambda: server.load == 0, "it is served though nobody waits")
    door[1][0].is_open.set()
    server.check_idle()
    queue = server.service.worker_threads._queue
    wait_until(lambda: not queue._begun, "its work does not end")
    assert door[1][0].asked == [begun]


def test_time_at_the_door_is_part_of_the_story_and_of_the_latency(
    start: Start, door: Doors
) -> None:
    """Guards the figures of a request that was long in coming: they are those of its caller."""
    server = start(World(wrap=door[0]))
    door[1][0].is_open.clear()
    replies: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: replies.append(server.complete(max_tokens=1)))
    asking.start()
    wait_until(lambda: server.load == 1, "it did not arrive")
    time.sleep(0.2)
    door[1][0].is_open.set()
    asking.join(WAIT_S)
    (reply,) = replies
    assert float(reply.headers["x-jitney-first-token-ms"]) >= 200
    assert float(reply.headers["x-jitney-total-ms"]) >= 200
    told = server.get("/metrics").text
    (first_s,) = re.findall(r"^jitney:first_token_seconds_sum\S* (\S+)$", told, re.MULTILINE)
    (queued_s,) = re.findall(r"^jitney:queue_seconds_sum\S* (\S+)$", told, re.MULTILINE)
    assert float(first_s) >= 0.2
    assert float(first_s) - float(queued_s) >= 0.2, "the time at the door is no time in the queue"
    (story,) = server.get("/page/state?requests=true").json()["requests"]
    assert story["words"].startswith("Read and tokenised in ")
    assert story["total_s"] >= 0.2
    assert story["phases"][0][0] == "reading"


def test_a_deadline_counts_from_arrival(start: Start, door: Doors) -> None:
    """Guards `deadline_ms`: time at the door is time."""
    server = start(World(wrap=door[0]))
    door[1][0].is_open.clear()
    replies: list[httpx.Response] = []

    def ask() -> None:
        replies.append(server.post("/v1/completions", {**SHORT, "deadline_ms": 50}))

    asking = threading.Thread(target=ask)
    asking.start()
    # On a busy machine it may be given up before it is at the door.
    wait_until(lambda: bool(door[1][0].asked or replies), "it did not arrive")
    time.sleep(0.1)
    door[1][0].is_open.set()
    asking.join(WAIT_S)
    error = check_error(replies[0], 408)
    assert error["code"] == "deadline_exceeded"
    assert "deadline_ms" in error["message"]
    assert server.post("/v1/completions", {**SHORT, "deadline_ms": 100_000}).status_code == 200


def test_a_full_queue_is_refused_by_the_engine(start: Start) -> None:
    """Guards callers and dashboards: the wait is told from the work, and refusals are counted."""
    server = start(World(backend=SLOW, sequences=1, queue=2))
    connections = []
    for count in range(1, 4):
        connections.append(server.connect())
        connections[-1].sendall(request_bytes("/v1/completions", LONG))
        wait_until(
            lambda count=count: server.service.engine.stats().live_requests == count,  # type: ignore[misc]
            "it was not accepted",
        )
        wait_until(lambda: server.service.engine.stats().active_slots == 1, "none has started")
    refused = server.complete()
    assert "are waiting already" in check_error(refused, 429)["message"]
    assert int(refused.headers["retry-after-ms"]) > 0
    assert server.service.engine.stats().refused_requests == 1
    assert 'requests_refused_total{error="QueueFull"' in server.get("/metrics").text.replace(
        'model_name="fake",', ""
    )
    for connection in connections:
        connection.close()
    server.check_idle()


def test_a_crowd_at_the_door_is_refused_and_pays_nothing(
    start: Start, door: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the door itself, and the rate of a key: who was not let in has used nothing."""
    monkeypatch.setattr(limits, "CALLS_UNSENT_MAX", 1)
    keys = (
        Key(name="a", secret=SECRET, queue_share=1.0, running_share=1.0),
        Key(name="b", secret=SECRET + "b", requests_per_minute=1),
    )
    server = start(World(wrap=door[0], sequences=1, queue=1, keys=keys, clock=StillClock()))
    door[1][0].is_open.clear()
    connections = [server.connect() for _ in range(3)]
    for connection in connections:
        key = f"Authorization: Bearer {SECRET}"
        connection.sendall(request_bytes("/v1/completions", SHORT, key))
    wait_until(lambda: server.load == 3, "they did not all arrive")

    def ask() -> httpx.Response:
        return server.post("/v1/completions", SHORT, authorization=f"Bearer {SECRET}b")

    for _ in range(2):
        assert "are being served" in check_error(ask(), 429)["message"]
    door[1][0].is_open.set()
    for connection in connections:
        read_all(connection)
        connection.close()
    assert ask().status_code == 200
    assert "requests per minute" in check_error(ask(), 429)["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_who_leaves_pays_for_what_was_made(start: Start, streams: bool) -> None:
    """Guards token rates: leaving before the end is no way around them."""
    keys = (Key(name="a", secret=SECRET, tokens_per_minute=10),)
    server = start(World(backend=SLOW, keys=keys))
    connection = server.connect()
    key = f"Authorization: Bearer {SECRET}"
    body = {"prompt": "a", "max_tokens": 90, "stream": streams}
    connection.sendall(request_bytes("/v1/completions", body, key))
    wait_until(lambda: server.service.engine.stats().completion_tokens >= 12, "nothing is made")
    connection.close()
    wait_until(server.is_idle, "the request went on for nobody")
    reply = server.post("/v1/completions", SHORT, authorization=f"Bearer {SECRET}")
    assert "tokens per minute" in check_error(reply, 429)["message"]


def test_who_never_ran_pays_nothing(start: Start) -> None:
    """Guards token rates the other way: a prompt that only waited was not computed."""
    keys = (Key(name="a", secret=SECRET), Key(name="b", secret=SECRET + "b", tokens_per_minute=50))
    server = start(World(backend=SLOW, sequences=1, keys=keys))
    running, waiting = server.connect(), server.connect()
    running.sendall(request_bytes("/v1/completions", LONG, f"Authorization: Bearer {SECRET}"))
    wait_until(lambda: server.service.engine.stats().active_slots == 1, "it did not start")
    body = {"prompt": "a" * 100, "max_tokens": 100}
    waiting.sendall(request_bytes("/v1/completions", body, f"Authorization: Bearer {SECRET}b"))
    wait_until(lambda: server.service.engine.stats().live_requests == 2, "it was not accepted")
    waiting.close()
    running.close()
    wait_until(server.is_idle, "something went on for nobody")
    reply = server.post("/v1/completions", SHORT, authorization=f"Bearer {SECRET}b")
    assert reply.status_code == 200


STRAYS = [b"\r\n", b"no HTTP", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"]


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_bytes_after_a_request_do_not_hide_that_its_client_left(
    start: Start, stray: bytes, is_late: bool, closes: bool
) -> None:
    """Guards slots: a connection is read on while it is answered."""
    server = start(World(backend=SLOW))
    connection = server.connect()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    content = request_bytes("/v1/completions", LONG, close=closes)
    connection.sendall(content if is_late else content + stray)
    wait_until(lambda: server.service.engine.stats().active_slots == 1, "it did not start")
    if is_late:
        connection.sendall(stray)
        time.sleep(0.05)
    assert server.load == 1
    connection.close()
    wait_until(server.is_idle, "the request went on for nobody")
    assert server.service.engine.stats().cancelled_requests == 1


def test_requests_that_come_together_are_answered_in_turn(start: Start) -> None:
    """Guards pipelining, early and late: each gets its answer, in order."""
    server = start(World(backend=SLOW))
    connection = server.connect()
    first = request_bytes("/v1/completions", {"prompt": "a", "max_tokens": 50}, close=False)
    second = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    connection.sendall(first + second)
    # Each is answered in its turn also where the first is over when the others come.
    wait_until(lambda: server.service.engine.stats().total_requests == 1, "it did not start")
    connection.sendall(second + b"GET /load HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = read_all(connection)
    connection.close()
    assert answer.count(b"HTTP/1.1 200 ") == 4
    places = [answer.index(b'"choices"'), answer.index(b'"version"'), answer.index(b"server_load")]
    assert places == sorted(places)


def test_a_flood_after_a_request_ends_the_connection(start: Start) -> None:
    """Guards memory: what is kept for later has a bound."""
    server = start(World(backend=SLOW))
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", LONG, close=False))
    wait_until(lambda: server.service.engine.stats().active_slots == 1, "it did not start")
    connection.sendall(b"a" * (limits.HEADER_BYTES_MAX + 1))
    assert read_all(connection) == b""
    connection.close()
    server.check_idle()


def test_bodies_are_bounded_all_together(start: Start) -> None:
    """Guards memory: many bodies that are each fine may be too much at once."""
    server = start(World(body_limit=100_000, bodies_bytes_max=140_000))
    big = {"prompt": "a" * 90_000}
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", big)[:-1])
    wait_until(lambda: server.service.bodies.count == 1, "it did not arrive")
    wait_until(
        lambda: server.post("/v1/completions", big).status_code == 503, "everything is taken in"
    )
    refused = server.post("/v1/completions", big)
    assert check_error(refused, 503)["code"] == "too_many_bytes"
    assert int(refused.headers["retry-after"]) >= 1
    assert server.complete().status_code == 200
    connection.close()
    wait_until(lambda: server.service.bodies.count == 0, "it is still held")
    assert (
        check_error(server.post("/v1/completions", big), 400)["code"] == "context_length_exceeded"
    )


def test_connections_are_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory and descriptors: one too many is told so, and those that are there stay."""
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    server = start(World())
    held = [server.connect() for _ in range(2)]
    answer = server.raw(b"")
    assert answer.startswith(b"HTTP/1.1 503 "), answer
    assert b"too_many_connections" in answer
    held[0].sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert read_all(held[0]).startswith(b"HTTP/1.1 200 ")
    for connection in held:
        connection.close()
    server.check_idle()


class Counter(Door):
    """Remembers how many texts each call to the tokenizer brought, and may let only some pass."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.calls: list[int] = []

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        self.calls.append(len(texts))
        return super().encode(texts)


Counters = tuple[Callable[[Any], Counter], list[Counter]]


@pytest.fixture
def counter() -> Counters:
    """Counters of what is tokenised."""
    return putting(Counter)


def of_names(count: int) -> dict[str, Any]:
    """A conversation that writes the name of a control token so often."""
    return {"messages": [{"role": "user", "content": "x<|end|>" * count}]}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
def test_names_of_control_tokens_are_one_message(
    start: Start, counter: Counters, path: str
) -> None:
    """Guards the door: 20,000 of them were as many round trips, and everybody waited for 22 s."""
    server = start(World(wrap=counter[0]))
    (backend,) = counter[1]
    assert check_error(server.post(path, of_names(20_000)), 400)["code"] == (
        "context_length_exceeded"
    )
    assert backend.calls == []
    assert server.post(path, of_names(100)).status_code == 200
    assert backend.calls == [201]


def test_work_of_a_caller_who_left_is_given_up(
    start: Start, counter: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the door: a long prompt is looked at again and again, and not made for nobody."""
    monkeypatch.setattr(core_limits, "SLICE_TEXTS", 1)
    server = start(World(wrap=counter[0]))
    (backend,) = counter[1]
    backend.is_open.clear()
    connection = server.connect()
    connection.sendall(request_bytes("/v1/chat/completions", of_names(400), close=False))
    wait_until(lambda: backend.calls == [1], "it was not begun")
    connection.close()
    wait_until(lambda: server.load == 0, "it is served though nobody waits")
    backend.is_open.set()
    assert server.complete(max_tokens=1).status_code == 200
    assert backend.calls == [1, 1], "what was begun went on for nobody"


def test_a_key_with_a_hundred_prompts_does_not_hold_up_another(start: Start, door: Doors) -> None:
    """Guards the door's places: one key's work, however much, leaves one of them to the others."""
    keys = (Key(name="a", secret=SECRET), Key(name="b", secret=SECRET + "b"))
    server = start(World(wrap=door[0], queue=512, keys=keys))
    door[1][0].is_open.clear()
    connections = [server.connect() for _ in range(100)]
    for connection in connections:
        key = f"Authorization: Bearer {SECRET}"
        connection.sendall(request_bytes("/v1/completions", SHORT, key))
    wait_until(lambda: server.load == 100, "they did not all arrive")
    # Tokens need no tokenizer, and a place at the door all the same.
    reply = server.post(
        "/v1/completions", {"prompt": [1, 2], "max_tokens": 1}, authorization=f"Bearer {SECRET}b"
    )
    assert reply.status_code == 200
    wait_until(lambda: server.load == 100, "it waited for one of them")
    door[1][0].is_open.set()
    for connection in connections:
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")
        connection.close()


def test_calls_of_one_key_do_not_take_every_place_of_the_server(
    start: Start, door: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the way in before the engine: calls that are on their way are counted by key, too."""
    monkeypatch.setattr(limits, "CALLS_UNSENT_MAX", 2)
    keys = (Key(name="a", secret=SECRET), Key(name="b", secret=SECRET + "b"))
    server = start(World(wrap=door[0], sequences=4, queue=4, keys=keys))
    door[1][0].is_open.clear()
    # Two that may wait, three that may run, and one on its way.
    connections = [server.connect() for _ in range(6)]
    for connection in connections:
        key = f"Authorization: Bearer {SECRET}"
        connection.sendall(request_bytes("/v1/completions", SHORT, key))
    wait_until(lambda: server.load == 6, "they did not all arrive")
    body = {"prompt": [1, 2], "max_tokens": 1}
    refused = server.post("/v1/completions", body, authorization=f"Bearer {SECRET}")
    assert "requests of this key are being served" in check_error(refused, 429)["message"]
    assert int(refused.headers["retry-after"]) >= 1
    reply = server.post("/v1/completions", body, authorization=f"Bearer {SECRET}b")
    assert reply.status_code == 200
    for connection in connections:
        connection.close()
    door[1][0].is_open.set()
    wait_until(server.is_idle, "something went on for nobody")
