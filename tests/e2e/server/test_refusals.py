"""Calls that are refused, or whose callers leave, before the engine has them; and what it costs."""

import re
import socket
from typing import Any

import httpx
import pytest

from jitney.config import Key
from jitney.core import limits as core_limits
from jitney.server import limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    WAIT_S,
    World,
    begun_one_by_one,
    check_error,
    read_all,
    request_bytes,
    wait_until,
)
from tests.e2e.server.pace import SLOW, Gated, StillClock

LONG = {"prompt": "a", "max_tokens": 4000}
SHORT = {"prompt": "a", "max_tokens": 1}
SECRET = "a-secret-of-the-tests"
KEY = f"Authorization: Bearer {SECRET}"
AT_THE_DOOR_S = 100 * WAIT_S
"""Far longer than any test runs."""


def test_who_leaves_at_the_door_is_not_waited_for(start: Start) -> None:
    """Guards the door: the work of those who left before their turn is never begun."""
    server = start(World(wrap=Gated))
    server.backend.may_read.clear()
    connections = [server.send(LONG, close=False) for _ in range(limits.WORKER_THREADS + 4)]
    wait_until(lambda: server.load == len(connections), "they did not all arrive")
    for connection in connections:
        connection.close()
    wait_until(lambda: server.load == 0, "they are served though nobody waits")
    server.backend.may_read.set()
    server.check_idle()
    assert server.stats.completed_requests == 0
    assert server.stats.cancelled_requests == 0


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
    start: Start, path: str, body: dict[str, Any], begun: str
) -> None:
    """Guards those who wait to compile: what was begun is ended, and no more is begun."""
    server = start(World(wrap=Gated))
    server.backend.may_read.clear()
    connection = server.connect()
    connection.sendall(request_bytes(path, body, close=False))
    wait_until(lambda: server.backend.reads == [begun], "it did not begin")
    connection.close()
    wait_until(lambda: server.load == 0, "it is served though nobody waits")
    server.backend.may_read.set()
    server.check_idle()
    queue = server.service.worker_threads._queue
    wait_until(lambda: not queue._begun, "its work does not end")
    assert server.backend.reads == [begun]


def test_time_at_the_door_is_part_of_the_story_and_of_the_latency(start: Start) -> None:
    """Guards the figures of a request that was long in coming: they are those of its caller. The
    clock by which callers come stands, and the engine's is far ahead of it."""
    server = start(World(clock=StillClock(behind_s=AT_THE_DOOR_S)))
    reply = server.complete(max_tokens=1)
    assert float(reply.headers["x-jitney-first-token-ms"]) >= AT_THE_DOOR_S * 1e3
    assert float(reply.headers["x-jitney-total-ms"]) >= AT_THE_DOOR_S * 1e3
    metrics = server.get("/metrics").text
    (first_s,) = re.findall(r"^jitney:first_token_seconds_sum\S* (\S+)$", metrics, re.MULTILINE)
    (queued_s,) = re.findall(r"^jitney:queue_seconds_sum\S* (\S+)$", metrics, re.MULTILINE)
    assert float(queued_s) < AT_THE_DOOR_S <= float(first_s), "the door is not the queue"
    (story,) = server.get("/page/state?requests=true").json()["requests"]
    assert story["words"].startswith("Read and tokenised in ")
    assert story["total_s"] >= AT_THE_DOOR_S
    assert story["phases"][0][0] == "reading"


def test_a_full_queue_is_refused_by_the_engine(start: Start) -> None:
    """Guards callers and dashboards: the wait is told from the work, and refusals are counted."""
    server = start(World(backend=SLOW, sequences=1, queue=2))
    connections = begun_one_by_one(server, 3)
    refused = server.complete()
    error = check_error(refused, 429)
    assert "are waiting already" in error["message"]
    assert error["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    assert int(refused.headers["retry-after-ms"]) > 0
    assert server.stats.refused_requests == 1
    assert 'requests_refused_total{error="QueueFull"' in server.get("/metrics").text.replace(
        'model_name="fake",', ""
    )
    for connection in connections:
        connection.close()
    server.check_idle()


def test_a_crowd_at_the_door_is_refused_and_pays_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the door itself, and the rate of a key: who was not let in has used nothing."""
    monkeypatch.setattr(limits, "CALLS_UNSENT_MAX", 1)
    keys = (
        Key(name="a", secret=SECRET, queue_share=1.0, running_share=1.0),
        Key(name="b", secret=SECRET + "b", requests_per_minute=1),
    )
    server = start(World(wrap=Gated, sequences=1, queue=1, keys=keys, clock=StillClock()))
    server.backend.may_read.clear()
    connections = [server.send(SHORT, KEY) for _ in range(3)]
    wait_until(lambda: server.load == 3, "they did not all arrive")

    def ask() -> httpx.Response:
        return server.post("/v1/completions", SHORT, authorization=f"Bearer {SECRET}b")

    for _ in range(2):
        assert "are being served" in check_error(ask(), 429)["message"]
    server.backend.may_read.set()
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
    connection = server.send({"prompt": "a", "max_tokens": 90, "stream": streams}, KEY)
    wait_until(lambda: server.stats.completion_tokens >= 12, "nothing is made")
    connection.close()
    wait_until(server.is_idle, "the request went on for nobody")
    reply = server.post("/v1/completions", SHORT, authorization=f"Bearer {SECRET}")
    assert "tokens per minute" in check_error(reply, 429)["message"]


def test_who_never_ran_pays_nothing(start: Start) -> None:
    """Guards token rates the other way: a prompt that only waited was not computed."""
    keys = (Key(name="a", secret=SECRET), Key(name="b", secret=SECRET + "b", tokens_per_minute=50))
    server = start(World(backend=SLOW, sequences=1, keys=keys))
    running = server.send(LONG, KEY)
    wait_until(lambda: server.stats.active_slots == 1, "it did not start")
    body = {"prompt": "a" * 100, "max_tokens": 100}
    waiting = server.send(body, KEY + "b")
    wait_until(lambda: server.stats.live_requests == 2, "it was not accepted")
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
    wait_until(lambda: server.stats.active_slots == 1, "it did not start")
    if is_late:
        connection.sendall(stray)
    # The event loop, which answers this, has met the stray bytes on the way.
    server.get("/health")
    assert server.load == 1
    connection.close()
    wait_until(server.is_idle, "the request went on for nobody")
    assert server.stats.cancelled_requests == 1


def test_requests_that_come_together_are_answered_in_turn(start: Start) -> None:
    """Guards pipelining, early and late: each gets its answer, in order."""
    server = start(World(backend=SLOW))
    connection = server.connect()
    first = request_bytes("/v1/completions", {"prompt": "a", "max_tokens": 50}, close=False)
    second = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    connection.sendall(first + second)
    # Each is answered in its turn also where the first is over when the others come.
    wait_until(lambda: server.stats.total_requests == 1, "it did not start")
    connection.sendall(second + b"GET /load HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = read_all(connection)
    connection.close()
    assert answer.count(b"HTTP/1.1 200 ") == 4
    places = [answer.index(b'"choices"'), answer.index(b'"version"'), answer.index(b"server_load")]
    assert places == sorted(places)


def test_a_flood_after_a_request_ends_the_connection(start: Start) -> None:
    """Guards memory: what is kept for later has a bound."""
    server = start(World(backend=SLOW))
    connection = server.send(LONG, close=False)
    wait_until(lambda: server.stats.active_slots == 1, "it did not start")
    connection.sendall(b"a" * (limits.HEADER_BYTES_MAX + 1))
    assert read_all(connection) == b""
    connection.close()
    server.check_idle()


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


def of_names(count: int) -> dict[str, Any]:
    """A conversation that writes the name of a control token so often."""
    return {"messages": [{"role": "user", "content": "x<|end|>" * count}]}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
def test_names_of_control_tokens_are_one_message(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Guards the door: 20,000 of them were as many round trips, and everybody waited for 22 s."""
    # A busy machine may need longer for a template than callers may.
    monkeypatch.setattr(core_limits, "TEMPLATE_S_MAX", WAIT_S)
    server = start(World(wrap=Gated))
    assert check_error(server.post(path, of_names(20_000)), 400)["code"] == (
        "context_length_exceeded"
    )
    assert server.backend.text_counts == []
    assert server.post(path, of_names(100)).status_code == 200
    assert server.backend.text_counts == [201]


def test_work_of_a_caller_who_left_is_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the door: a long prompt is looked at again and again, and not made for nobody."""
    monkeypatch.setattr(core_limits, "SLICE_TEXTS", 1)
    server = start(World(wrap=Gated))
    server.backend.may_read.clear()
    connection = server.connect()
    connection.sendall(request_bytes("/v1/chat/completions", of_names(400), close=False))
    wait_until(lambda: server.backend.text_counts == [1], "it was not begun")
    connection.close()
    wait_until(lambda: server.load == 0, "it is served though nobody waits")
    server.backend.may_read.set()
    assert server.complete(max_tokens=1).status_code == 200
    assert server.backend.text_counts == [1, 1], "what was begun went on for nobody"


def test_a_key_with_a_hundred_prompts_does_not_hold_up_another(start: Start) -> None:
    """Guards the door's places: one key's work, however much, leaves one of them to the others."""
    keys = (Key(name="a", secret=SECRET), Key(name="b", secret=SECRET + "b"))
    server = start(World(wrap=Gated, queue=512, keys=keys))
    server.backend.may_read.clear()
    connections = [server.send(SHORT, KEY) for _ in range(100)]
    wait_until(lambda: server.load == 100, "they did not all arrive")
    # Tokens need no tokenizer, and a place at the door all the same.
    reply = server.post(
        "/v1/completions", {"prompt": [1, 2], "max_tokens": 1}, authorization=f"Bearer {SECRET}b"
    )
    assert reply.status_code == 200
    wait_until(lambda: server.load == 100, "it waited for one of them")
    server.backend.may_read.set()
    for connection in connections:
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")
        connection.close()


def test_calls_of_one_key_do_not_take_every_place_of_the_server(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the way in before the engine: calls that are on their way are counted by key, too."""
    monkeypatch.setattr(limits, "CALLS_UNSENT_MAX", 2)
    keys = (Key(name="a", secret=SECRET), Key(name="b", secret=SECRET + "b"))
    server = start(World(wrap=Gated, sequences=4, queue=4, keys=keys))
    server.backend.may_read.clear()
    # Two that may wait, three that may run, and one on its way.
    connections = [server.send(SHORT, KEY) for _ in range(6)]
    wait_until(lambda: server.load == 6, "they did not all arrive")
    body = {"prompt": [1, 2], "max_tokens": 1}
    refused = server.post("/v1/completions", body, authorization=f"Bearer {SECRET}")
    assert "requests of this key are being served" in check_error(refused, 429)["message"]
    assert int(refused.headers["retry-after"]) >= 1
    reply = server.post("/v1/completions", body, authorization=f"Bearer {SECRET}b")
    assert reply.status_code == 200
    for connection in connections:
        connection.close()
    server.backend.may_read.set()
    wait_until(server.is_idle, "something went on for nobody")


@pytest.mark.parametrize("streams", [False, True])
def test_a_list_for_which_there_is_no_room_is_refused_at_once(start: Start, streams: bool) -> None:
    """Guards an overloaded server and its caller: no answer is worked on that nobody will get."""
    server = start(World(backend=SLOW, sequences=1, queue=4))
    connections = begun_one_by_one(server, 3)
    refused = server.complete(["a", "b", "c"], max_tokens=4000, stream=streams)
    assert check_error(refused, 429)["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    wait_until(lambda: server.stats.live_requests == 3, "its rest is worked on for nobody")
    assert server.stats.refused_requests == 1
    for connection in connections:
        connection.close()
    server.check_idle()


def test_more_tokens_than_may_ever_wait_are_no_overload(start: Start) -> None:
    """Guards clients that try again after 429: they would do so for ever."""
    server = start(World(queue=4096))
    tokens_max = server.service.engine.settings.max_num_queued_tokens
    prompts = [[65] * (tokens_max // (128 * 16) + 1)] * 128
    error = check_error(server.complete(prompts, n=16), 400, "prompt")
    assert str(tokens_max) in error["message"]
    assert server.complete(prompts[:2], n=16, max_tokens=1).status_code == 200
