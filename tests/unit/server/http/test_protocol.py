"""When a connection is cut because its client does not read: a transport and a clock of our own."""

import asyncio
import contextlib
import socket
import sys
import termios
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from jitney.server.http.connections import Rounds
from jitney.server.http.protocol import GuardedProtocol

LIMIT_S = 30.0


class Transport(asyncio.Transport):
    """Holds as many bytes as it is told."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        super().__init__()
        self._connection = connection
        self.unsent_bytes = 0
        self.was_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.was_aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.was_aborted

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # Any: as asyncio has it
        return self._connection if name == "socket" else default


class Clock:
    """The time of a loop, as far as it is asked for here."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, *_: object) -> None:
        return None

    def call_soon(self, *_: object) -> None:
        return None


class Cycle:
    """A request that was read whole and is being answered."""

    more_body = False
    response_complete = False


def made(transport: Transport, clock: Clock) -> GuardedProtocol:
    """A connection."""
    config = uvicorn.Config(FastAPI(), log_config=None, ws="none")
    config.load()
    protocol = GuardedProtocol(
        config, ServerState(), {}, clock, rounds=Rounds(clock.call_soon), note=print
    )
    protocol.connection_made(transport)
    return protocol


def is_cut(sizes: list[int], *, is_answering: bool = False, is_paused: bool = False) -> bool:
    """Whether a client is cut to whom so much is unsent at one look after the other."""
    clock, transport = Clock(), Transport()
    protocol = made(transport, clock)
    if is_answering:
        protocol.cycle = Cycle()  # type: ignore[assignment]
    if is_paused:
        protocol.pause_writing()
    for size in sizes:
        transport.unsent_bytes = size
        protocol.cut_if_stalled(LIMIT_S)
        clock.now += LIMIT_S / 3
    return transport.was_aborted


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([0] * 9, False),
        ([9, 9, 9], False),
        ([9, 9, 9, 9], True),
        ([9, 9, 9, 0, 9, 9, 9], False),
        ([9, 9, 9, 8, 8, 8, 7, 7, 7], False),
        ([9, 9, 9, 8, 8, 8, 8], True),
        ([9, 10, 11, 12], True),
    ],
)
def test_whoever_takes_nothing_for_as_long_is_cut(sizes: list[int], *, expected: bool) -> None:
    """Guards slow readers from being cut, and places from those who do not read at all."""
    assert is_cut(sizes) is expected
    assert is_cut(sizes, is_answering=True, is_paused=True) is expected


def test_nobody_is_cut_while_more_is_written() -> None:
    """Guards streams: what is left does not grow less while they go on, whatever is taken."""
    assert not is_cut([9, 10, 11, 12, 12, 12, 12], is_answering=True)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_what_the_client_takes_of_the_system_counts() -> None:
    """Guards slow readers: ours grows less only when the system has given up much of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    clock, transport = Clock(), Transport(connection)
    protocol = made(transport, clock)
    transport.unsent_bytes = 9
    with client, connection:
        connection.setblocking(False)
        held_bytes = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                held_bytes += connection.send(bytes(65_536))
        for _ in range(3):
            protocol.cut_if_stalled(LIMIT_S)
            clock.now += LIMIT_S / 2
            client.recv(held_bytes // 4, socket.MSG_WAITALL)
        assert not transport.was_aborted
        for _ in range(4):
            protocol.cut_if_stalled(LIMIT_S)
            clock.now += LIMIT_S / 2
        assert transport.was_aborted


class Told(socket.socket):
    """A connection on macOS: the system tells how much it holds by an option of the socket."""

    sizes: list[int] | None = None

    def getsockopt(self, level: int, option: int, *_: int) -> int:  # type: ignore[override]
        assert (level, option) == (socket.SOL_SOCKET, 0x1024)
        if self.sizes is None:
            raise OSError("no such option")
        return self.sizes.pop(0)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([9, 8, 7, 6, 5, 4], False), ([9, 9, 9, 9, 9, 9], True), (None, True)],
    ids=["taken", "not taken", "not told"],
)
def test_macos_is_asked_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int] | None, *, expected: bool
) -> None:
    """Guards slow readers where Linux's question has no answer; untold, only ours counts."""
    with Told() as connection:
        connection.sizes = sizes
        clock, transport = Clock(), Transport(connection)
        protocol = made(transport, clock)
        monkeypatch.setattr(sys, "platform", "darwin")
        transport.unsent_bytes = 9
        for _ in range(6):
            protocol.cut_if_stalled(LIMIT_S)
            clock.now += LIMIT_S / 3
    assert transport.was_aborted is expected


def test_a_system_that_does_not_tell_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards other systems: without an answer, what is ours decides alone."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(termios, "TIOCOUTQ", 0)
    clock, transport = Clock(), Transport(ours)
    protocol = made(transport, clock)
    with ours, theirs:
        for size in (9, 9, 8, 8, 7, 7):
            transport.unsent_bytes = size
            protocol.cut_if_stalled(LIMIT_S)
            clock.now += LIMIT_S / 2
        assert not transport.was_aborted
        for _ in range(3):
            protocol.cut_if_stalled(LIMIT_S)
            clock.now += LIMIT_S / 2
        assert transport.was_aborted
