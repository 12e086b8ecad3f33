"""Bodies that are slow or large: they keep nobody else from being served."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jitney.config import Key, ServeSettings
from jitney.server import limits, routes
from jitney.server.openai.check_body import check_body
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    MODEL,
    WAIT_S,
    Running,
    World,
    check_error,
    read_all,
    request_bytes,
    wait_until,
)

SHORT = {"prompt": "a", "max_tokens": 1}


@contextlib.contextmanager
def slow_senders(server: Running, count: int) -> Iterator[list[socket.socket]]:
    """So many clients whose bodies lack their last byte, the first one first."""
    with contextlib.ExitStack() as stack:
        senders = []
        for place in range(1, count + 1):
            senders.append(stack.enter_context(server.connect()))
            senders[-1].sendall(request_bytes("/v1/completions", SHORT)[:-1])
            bound = min(place, limits.BODIES_READ_MAX)
            wait_until(
                lambda bound=bound: server.service.bodies.count == bound,  # type: ignore[misc]
                "it did not arrive",
            )
        yield senders


def test_more_slow_senders_than_places_harm_nobody(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everybody else: a place is taken by work, not by a body that may never come."""
    monkeypatch.setattr(limits, "CALLS_UNSENT_MAX", 1)
    server = start(World(sequences=1, queue=1))
    with slow_senders(server, 12) as senders:
        assert server.load == 0
        for _ in range(3):
            assert server.complete().status_code == 200
        senders[0].sendall(b"}")
        assert read_all(senders[0]).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: server.service.bodies.count == 0, "they are waited for though they left")
    server.check_idle()


def test_the_slowest_gives_way(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the bound on bodies that are read: it is no way to shut others out."""
    monkeypatch.setattr(limits, "BODIES_READ_MAX", 4)
    server = start(World())
    with slow_senders(server, 6) as senders:
        for sender in senders[:2]:
            assert read_all(sender).startswith(b"HTTP/1.1 408 ")
        assert server.complete().status_code == 200
        assert read_all(senders[2]).startswith(b"HTTP/1.1 408 ")
        for sender in senders[3:]:
            sender.sendall(b"}")
            assert read_all(sender).startswith(b"HTTP/1.1 200 ")
    server.check_idle()


def test_a_drain_does_not_wait_for_bodies(start: Start) -> None:
    """Guards a restart: what has not come yet is new work, and is sent elsewhere at once."""
    server = start(
        World(settings=ServeSettings(served_model_name=(MODEL,), shutdown_timeout=600.0))
    )
    with slow_senders(server, 3) as senders:
        server.lifecycle.stop()
        for sender in senders:
            answer = read_all(sender)
            assert answer.startswith(b"HTTP/1.1 503 "), answer
            assert b"shutting_down" in answer


def test_large_bodies_leave_room_for_ordinary_ones(start: Start) -> None:
    """Guards memory: many bodies that are each fine may be too much at once. Guards everybody else
    against a few who fill up what may be held."""
    server = start(World(body_limit=100_000, bodies_bytes_max=100_000))
    large = {"prompt": "a" * 90_000}

    def is_refused() -> bool:
        return server.post("/v1/completions", large).status_code == 503

    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(server.connect()) for _ in range(2)]
        senders[0].sendall(request_bytes("/v1/completions", large)[:-1])
        wait_until(lambda: server.service.bodies.count == 1, "it did not arrive")
        wait_until(is_refused, "everything is taken in")
        # What is left is less than the whole of this one, and it comes in all the same.
        senders[1].sendall(request_bytes("/v1/completions", {"prompt": "b" * 40_000})[:-1])
        wait_until(lambda: server.service.bodies.count == 2, "it did not arrive")
        assert server.complete("c" * 1000, max_tokens=1).status_code == 200
        refused = server.complete("c" * 80_000)
        assert check_error(refused, 503)["code"] == "too_many_bytes"
        assert int(refused.headers["retry-after"]) >= 1
    wait_until(lambda: server.service.bodies.count == 0, "they are waited for though they left")
    assert not is_refused(), "what left is still held"
    server.check_idle()


LARGE = request_bytes("/v1/completions", {"prompt": "a" * (limits.INLINE_BYTES_MAX + 1)})


class Gate:
    """Bodies that are parsed wait in it until they may go on; it counts them."""

    def __init__(self, check: Callable[..., Any]) -> None:
        self._check = check
        self.may_go = threading.Event()
        self.within = self.most = self.begun = 0
        self.turns: list[int] = []
        """How many had been parsed at each turn that the event loop had after one."""
        self.turns_before: list[int] = []
        """For each that was begun: how many such turns there had been."""
        self.lengths: list[int] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """Known after a small body, which is parsed on it."""

    def __call__(self, content: bytes, **rest: Any) -> Any:
        if len(content) <= limits.INLINE_BYTES_MAX:
            self.loop = asyncio.get_running_loop()
            return self._check(content, **rest)
        self.turns_before.append(len(self.turns))
        self.lengths.append(len(content))
        self.begun += 1
        self.within += 1
        self.most = max(self.most, self.within)
        assert self.may_go.wait(WAIT_S), "nobody let it go"
        self.within -= 1
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.turns.append, self.begun)
        return self._check(content, **rest)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """In place of what parses bodies."""
    made = Gate(check_body)
    monkeypatch.setattr(routes, "check_body", made)
    yield made
    made.may_go.set()


def asked(server: Running, count: int, large: bytes = LARGE) -> list[Any]:
    """So many connections on each of which a large body was sent."""
    connections = [server.connect() for _ in range(count)]
    for each in connections:
        more = server.load + 1
        each.sendall(large)
        wait_until(lambda more=more: server.load == more, "it was not taken")  # type: ignore[misc]
    return connections


def test_large_bodies_are_parsed_one_at_a_time(start: Start, gate: Gate) -> None:
    """Guards everybody else: all threads wait for one that parses, so there is only one."""
    server = start(World())
    connections = asked(server, 6)
    wait_until(lambda: gate.begun == 1, "nothing is parsed")
    # Ordinary ones do not stand in this line.
    assert server.complete().status_code == 200
    gate.may_go.set()
    for each in connections:
        assert b"context_length_exceeded" in read_all(each)
        each.close()
    assert gate.most == 1
    assert gate.begun == 6
    server.check_idle()


def test_the_event_loop_has_a_turn_between_two_large_bodies(start: Start, gate: Gate) -> None:
    """Guards streams: each piece of one needs several turns, and ten bodies left it one each."""
    server = start(World())
    assert server.complete().status_code == 200
    connections = asked(server, 6)
    gate.may_go.set()
    for each in connections:
        read_all(each)
        each.close()
    assert gate.turns_before == [0, 1, 2, 3, 4, 5]
    server.check_idle()


def test_keys_take_turns_with_large_bodies(start: Start, gate: Gate) -> None:
    """Guards a caller with one large body behind another's many."""
    server = start(World(keys=(Key(name="a", secret="key-a"), Key(name="b", secret="key-b"))))
    prompts = {
        key: "a" * (limits.INLINE_BYTES_MAX + more)
        for more, key in enumerate(("key-a", "key-b"), 1)
    }
    large = {
        key: request_bytes("/v1/completions", {"prompt": text}, f"Authorization: Bearer {key}")
        for key, text in prompts.items()
    }
    connections = asked(server, 4, large["key-a"]) + asked(server, 1, large["key-b"])
    gate.may_go.set()
    for each in connections:
        read_all(each)
        each.close()
    # The other's second body was in the line already.
    assert gate.lengths.index(max(gate.lengths)) == 2
    server.check_idle()


def test_who_leaves_is_not_parsed(start: Start, gate: Gate) -> None:
    """Guards those who stay: the line holds nobody who is gone."""
    server = start(World())
    connections = asked(server, 6)
    wait_until(lambda: gate.begun == 1, "nothing is parsed")
    for each in connections[1:5]:
        each.close()
    wait_until(lambda: server.load == 2, "those who left are waited for")
    gate.may_go.set()
    for each in (connections[0], connections[5]):
        assert b"context_length_exceeded" in read_all(each)
        each.close()
    assert gate.begun == 2
    server.check_idle()


def test_values_are_bounded_by_what_a_body_may_be(start: Start) -> None:
    """Guards the interpreter: it reads numbers by the million for seconds."""
    server = start(World(body_limit=2_097_152))
    error = check_error(server.complete([1] * (limits.VALUES_MAX + 1)), 400)
    assert error["code"] == "invalid_json"
    error = check_error(server.complete([1] * (limits.VALUES_MAX - 10)), 400)
    assert error["code"] == "context_length_exceeded"
    error = check_error(server.complete("1," * limits.VALUES_MAX), 400)
    assert error["code"] == "context_length_exceeded"
    refused = check_error(server.complete("1" * 2_200_000), 413)
    assert "--body-limit" in refused["message"]
