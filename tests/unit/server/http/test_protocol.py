"""When a connection is cut because its client does not read: a transport and a clock of our own."""

import contextlib
import socket
import sys
import termios

import pytest

from tests.unit.server.http.connection_for_tests import Connection

LIMIT_S = 30.0


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


class Watched(Connection):
    """A connection whose client is looked at from time to time."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self.clock = Clock()
        super().__init__(self.clock, connection=connection)

    def look(self, unsent_bytes: int, pause_s: float = LIMIT_S / 3) -> None:
        """Cut it if it takes nothing of this; then time passes."""
        self.transport.unsent_bytes = unsent_bytes
        self.protocol.cut_if_stalled(LIMIT_S)
        self.clock.now += pause_s


def is_cut(sizes: list[int], *, is_answering: bool = False, is_paused: bool = False) -> bool:
    """Whether a client is cut to whom so much is unsent at one look after the other."""
    made = Watched()
    if is_answering:
        made.protocol.cycle = Cycle()  # type: ignore[assignment]
    if is_paused:
        made.protocol.pause_writing()
    for size in sizes:
        made.look(size)
    return made.transport.is_closed


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
    made = Watched(connection)
    with client, connection:
        connection.setblocking(False)
        held_bytes = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                held_bytes += connection.send(bytes(65_536))
        for _ in range(3):
            made.look(9, LIMIT_S / 2)
            client.recv(held_bytes // 4, socket.MSG_WAITALL)
        assert not made.transport.is_closed
        for _ in range(4):
            made.look(9, LIMIT_S / 2)
        assert made.transport.is_closed


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
        made = Watched(connection)
        monkeypatch.setattr(sys, "platform", "darwin")
        for _ in range(6):
            made.look(9)
    assert made.transport.is_closed is expected


def test_a_system_that_does_not_tell_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards other systems: without an answer, what is ours decides alone."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(termios, "TIOCOUTQ", 0)
    made = Watched(ours)
    with ours, theirs:
        for size in (9, 9, 8, 8, 7, 7):
            made.look(size, LIMIT_S / 2)
        assert not made.transport.is_closed
        for _ in range(3):
            made.look(7, LIMIT_S / 2)
        assert made.transport.is_closed
