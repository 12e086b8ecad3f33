"""Bodies that take their time: whoever sends slowly keeps nobody else from being served."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from jitney.config import ServeSettings
from jitney.server import limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    MODEL,
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
    """Guards everybody else against a few who fill up what may be held."""
    server = start(World(body_limit=100_000, bodies_bytes_max=100_000))
    large = request_bytes("/v1/completions", {"prompt": "a" * 90_000})
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(server.connect()) for _ in range(2)]
        senders[0].sendall(large[:-1])
        wait_until(lambda: server.service.bodies.count == 1, "it did not arrive")
        wait_until(
            lambda: server.post("/v1/completions", {"prompt": "a" * 90_000}).status_code == 503,
            "everything is taken in",
        )
        # What is left is less than the whole of this one, and it comes in all the same.
        senders[1].sendall(request_bytes("/v1/completions", {"prompt": "b" * 40_000})[:-1])
        wait_until(lambda: server.service.bodies.count == 2, "it did not arrive")
        assert server.complete("c" * 1000, max_tokens=1).status_code == 200
        check_error(server.complete("c" * 80_000), 503)
    wait_until(lambda: server.service.bodies.count == 0, "they are waited for though they left")
    server.check_idle()
