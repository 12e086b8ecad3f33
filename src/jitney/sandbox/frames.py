"""Frames over a socket: four bytes of length, then so many bytes.

One thread at a time uses them; any other may close them. A frame has a greatest size, so a damaged
length cannot ask for all memory. A wait is bounded by the limit it is given: that long for the
other side to begin, and that long between two pieces of one frame.
"""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

FRAME_BYTES_MAX = 2**28
"""More than the tokens of the longest text that may be encoded take."""

_LENGTH = struct.Struct(">I")
_PIECE_BYTES = 2**16


class ChannelClosed(Exception):
    """The other side is gone, or this side closed the channel."""


class MalformedFrame(ValueError):
    """The other side sent something that is not a message."""


class Frames:
    """One end of a pair of sockets, speaking in frames."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # Everything is tried before it is waited for. A socket that waits by itself first hands
        # the interpreter to another thread, and a batch would leave after that thread's turn.
        self._socket.setblocking(False)
        self._room = _poll(end, select.POLLOUT)
        self._news = _poll(end, select.POLLIN)
        self._unread = bytearray()
        # Held while the socket is in use, so that its number is not given to another file.
        self._in_use = threading.Lock()

    def send(self, frame: bytes, limit_s: float | None = None) -> None:
        """Send a frame whole. Raises ChannelClosed, TimeoutError or MalformedFrame."""
        if len(frame) > FRAME_BYTES_MAX:
            raise MalformedFrame(f"a message of {len(frame)} bytes is too long to be sent.")
        unsent = memoryview(_LENGTH.pack(len(frame)) + frame)
        with self._in_use, _as_closed():
            while unsent:
                try:
                    unsent = unsent[self._socket.send(unsent) :]
                except BlockingIOError:
                    _wait(self._room, limit_s)

    def receive(self, limit_s: float | None = None) -> bytes:
        """Wait for a frame. Raises ChannelClosed, TimeoutError or MalformedFrame."""
        with self._in_use, _as_closed():
            self._fill(_LENGTH.size, limit_s)
            (length,) = _LENGTH.unpack_from(self._unread)
            if length > FRAME_BYTES_MAX:
                raise MalformedFrame(f"a frame of {length} bytes is longer than any message.")
            end = _LENGTH.size + length
            self._fill(end, limit_s)
            frame = bytes(memoryview(self._unread)[_LENGTH.size : end])
            del self._unread[:end]
        return frame

    def close(self) -> None:
        """End them for both sides, and wake whoever waits on it; idempotent."""
        # It may be closed, or the other side may have ended it first.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._in_use:
            self._socket.close()

    def _fill(self, length: int, limit_s: float | None) -> None:
        """Read until there are so many bytes."""
        while len(self._unread) < length:
            try:
                piece = self._socket.recv(_PIECE_BYTES)
            except BlockingIOError:
                _wait(self._news, limit_s)
                continue
            if not piece:
                raise ChannelClosed("the other side is gone.")
            self._unread += piece


def _poll(end: socket.socket, event: int) -> select.poll:
    poll = select.poll()
    poll.register(end, event)
    return poll


def _wait(poll: select.poll, limit_s: float | None) -> None:
    """Wait for what it looks for. Raises TimeoutError."""
    if not poll.poll(None if limit_s is None else limit_s * 1e3):
        raise TimeoutError


@contextlib.contextmanager
def _as_closed() -> Iterator[None]:
    """What goes wrong with a socket means that its other side is gone, unless it is the time."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise ChannelClosed("the other side is gone.") from error
