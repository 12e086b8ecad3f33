"""Clients that are slow, idle, too many or gone, by the numbered rows of expected answers."""

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.core import limits as core_limits
from jitney.engine.answer import Delta
from jitney.server import limits
from jitney.server.http.protocol import GuardedProtocol
from jitney.server.openai.replies import Reply
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    WAIT_S,
    Running,
    World,
    events,
    read_all,
    request_bytes,
    wait_until,
)
from tests.e2e.server.pace import SLOW, Gated
from tests.e2e.server.processes import memory_bytes

LONG = {"prompt": "a", "max_tokens": 4000}


@pytest.fixture
def start(start: Start) -> Iterator[Start]:
    """Starts servers that hold nothing when the test is over."""
    made: list[Running] = []

    def begin(world: World) -> Running:
        made.append(start(world))
        return made[-1]

    yield begin
    for each in made:
        each.check_idle()


def test_row_43_slow_headers_and_bodies(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards connections: whoever does not come to the point is told so, and closed."""
    monkeypatch.setattr(limits, "HEADER_S_MAX", 0.3)
    monkeypatch.setattr(limits, "BODY_S_MAX", 0.3)
    server = start(World())

    def answer(content: bytes) -> bytes:
        """What comes back; nothing is sent where this thread was too slow for so short a time."""
        with contextlib.suppress(ConnectionError):
            return server.raw(content)
        return b""

    half = b"GET /health HTTP/1.1\r\nHost: x\r\nX-"
    wait_until(lambda: answer(half).startswith(b"HTTP/1.1 408 "), "half a header is waited for")
    assert server.raw(b"") == b""
    head = request_bytes("/v1/completions", {"prompt": "a"}, close=False)
    wait_until(lambda: answer(head[:-3]).startswith(b"HTTP/1.1 408 "), "half a body is waited for")
    whole = request_bytes("/v1/completions", {"prompt": "a"})
    wait_until(lambda: answer(whole).startswith(b"HTTP/1.1 200 "), "nobody is served")


def test_row_44_readers_that_stop(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the slots of clients that read no more: cut, at little cost, and unnoticed by others.

    The kernel may keep but little for them: by itself it would take a whole answer.
    """
    count, long = 8, 8_000
    backend = FakeSettings(slots=32, eos_period=0, kv_tokens=16 * long, model_len_max=2 * long)
    monkeypatch.setattr(limits, "SEND_S_MAX", 0.5)
    world = World(
        backend=backend,
        unsent_bytes_max=16_384,
        sequences=16,
        model_len=2 * long,
    )
    server = start(world)
    expected = server.complete("others", temperature=0).json()["choices"][0]["text"]
    body = {"prompt": "a", "max_tokens": long, "stream": True, "logprobs": 10, "ignore_eos": True}
    before, taken = memory_bytes(os.getpid()), 0
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(server.silent(request_bytes("/v1/completions", body)))
        # The first may be cut before the last one comes.
        wait_until(lambda: server.stats.total_requests == 1 + count, "the streams did not start")

        def are_cut() -> bool:
            nonlocal taken
            reply = server.complete("others", temperature=0)
            assert reply.json()["choices"][0]["text"] == expected
            taken = max(taken, memory_bytes(os.getpid()) - before)
            return server.stats.cancelled_requests == count

        wait_until(are_cut, "readers that stopped were not cut")
        server.check_idle()
    assert taken < 64 * 2**20


def test_a_reader_that_stops_and_reads_on_misses_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the two ways of a stream to its client: at once, and awaited when it is behind."""
    ways: list[bool] = []
    write_piece = GuardedProtocol.write_piece

    def noted(protocol: GuardedProtocol, piece: bytes) -> bool:
        ways.append(write_piece(protocol, piece))
        return ways[-1]

    monkeypatch.setattr(GuardedProtocol, "write_piece", noted)
    monkeypatch.setattr(core_limits, "UNREAD_S_MAX", 3600.0)
    monkeypatch.setattr(limits, "PING_S", 0.1)
    server = start(World(backend=replace(SLOW, tick_s=0.002), unsent_bytes_max=16_384))
    asked = {"max_tokens": 1000, "ignore_eos": True, "temperature": 0}
    expected = server.complete("a", **asked).json()["choices"][0]["text"]
    body = {"prompt": "a", "stream": True, "logprobs": 5, **asked}
    with server.silent(request_bytes("/v1/completions", body)) as connection:
        wait_until(lambda: False in ways, "nothing was ever awaited")
        text = read_all(connection).partition(b"\r\n\r\n")[2]
    *chunks, done = events(dechunked(text).decode())
    assert done == "[DONE]"
    made = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert made == expected
    assert ways[0]
    assert True in ways[ways.index(False) :], "it is awaited for ever"


def test_what_a_reader_left_unread_is_not_made_for_nobody(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everyone else: twelve who had read nothing left, and all of it was written out."""
    made: list[bool] = []
    chunks = Reply.chunks

    def counted(reply: Reply, place: int, delta: Delta, *others: Any) -> list[dict[str, Any]]:
        made.append(True)
        return chunks(reply, place, delta, *others)

    monkeypatch.setattr(Reply, "chunks", counted)
    monkeypatch.setattr(core_limits, "UNREAD_S_MAX", 3600.0)
    server = start(World(backend=replace(SLOW, tick_s=0.002), unsent_bytes_max=16_384))
    body = {"prompt": "a", "stream": True, "logprobs": 5, "max_tokens": 1000, "ignore_eos": True}
    body["n"] = 4
    with server.silent(request_bytes("/v1/completions", body)):
        wait_until(lambda: is_behind(server, made), "everything was read")
        wait_until(lambda: is_stuck(server, made), "everything is written out")
        before = len(made)
    server.check_idle()
    assert len(made) <= before + 8, "each of four completions is read once or twice more"


def is_behind(server: Running, made: list[bool]) -> bool:
    """Whether many more tokens are there than were written out."""
    stats = server.stats
    return stats.completion_tokens > len(made) + 500


def is_stuck(server: Running, made: list[bool]) -> bool:
    """Whether nothing more is written out though the event loop has its turns."""
    before = len(made)
    for _ in range(5):
        server.get("/health")
    return len(made) == before


def dechunked(body: bytes) -> bytes:
    """A chunked body, strictly."""
    pieces = []
    while True:
        size, _, body = body.partition(b"\r\n")
        count = int(size, 16)
        pieces.append(body[:count])
        assert body[count : count + 2] == b"\r\n"
        body = body[count + 2 :]
        if count == 0:
            assert body == b""
            return b"".join(pieces)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("way", ["close", "reset", "half"])
def test_row_51_clients_that_leave(
    start: Start, caplog: pytest.LogCaptureFixture, streams: bool, way: str
) -> None:
    """Guards slots: however a client leaves, its slot is free within two ticks, and quietly."""
    server = start(World(backend=SLOW, wrap=Gated))
    connection = server.send({**LONG, "stream": streams}, close=False)
    wait_until(lambda: server.stats.completion_tokens > 2, "it did not start")
    server.backend.may_run.clear()
    assert server.backend.waits.wait(WAIT_S), "no batch came"
    if way == "half":
        connection.shutdown(socket.SHUT_WR)
    elif way == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    else:
        connection.close()
    # The event loop, which answers these, has met the end of the connection on the way.
    for _ in range(3):
        assert server.get("/health").status_code == 200
    count = server.backend.batch_count
    server.backend.may_run.set()
    wait_until(server.is_idle, "the request went on for nobody")
    assert server.stats.cancelled_requests == 1
    # The one that waited, and at most one more.
    assert server.backend.batch_count <= count + 1
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    if way == "half":
        read_all(connection)
        connection.close()
