"""Frames over a socket: four bytes for the length, then the content.

One thread at a time uses a `Frames`; any other thread may close it. Frames have a maximum size, so
a damaged length cannot take all memory. The limit of a wait applies until the other side begins,
and between any two pieces of one frame.
"""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

FRAME_BYTES_MAX = 2**28
"""More than the size of the tokens of the longest text that may be encoded."""

_LENGTH = struct.Struct(">I")
_PIECE_BYTES = 2**16


class ChannelClosed(Exception):
    """The other side is gone, or this side closed the channel."""


class MalformedFrame(ValueError):
    """The other side sent data that is not a message."""


class Frames:
    """One end of a pair of sockets that carries frames."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # Try first, then wait. A blocking socket would first let another thread run, and a batch
        # would leave only after that thread's turn.
        self._socket.setblocking(False)
        self._writable = _poll(end, select.POLLOUT)
        self._readable = _poll(end, select.POLLIN)
        self._unread = bytearray()
        # Held while the socket is in use, so that no other file gets its number.
        self._in_use = threading.Lock()

    def send(self, frame: bytes, limit_s: float | None = None) -> None:
        """Send a whole frame. Raises ChannelClosed, TimeoutError or MalformedFrame."""
        if len(frame) > FRAME_BYTES_MAX:
            raise MalformedFrame(f"a message of {len(frame)} bytes is too long to be sent.")
        unsent = memoryview(_LENGTH.pack(len(frame)) + frame)
        with self._in_use, _as_closed():
            while unsent:
                try:
                    unsent = unsent[self._socket.send(unsent) :]
                except BlockingIOError:
                    _wait(self._writable, limit_s)

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

    def is_readable(self) -> bool:
        """Whether a frame has begun to come, or the other side is gone. Does not wait."""
        return bool(self._unread or self._readable.poll(0))

    def close(self) -> None:
        """Close the connection for both sides, and wake every waiting thread; idempotent."""
        # The socket may be closed already, on this side or on the other.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._in_use:
            self._socket.close()

    def _fill(self, length: int, limit_s: float | None) -> None:
        """Read until there are `length` bytes."""
        while len(self._unread) < length:
            try:
                piece = self._socket.recv(_PIECE_BYTES)
            except BlockingIOError:
                _wait(self._readable, limit_s)
                continue
            if not piece:
                raise ChannelClosed("the other side is gone.")
            self._unread += piece


def _poll(end: socket.socket, event: int) -> select.poll:
    poll = select.poll()
    poll.register(end, event)
    return poll


def _wait(poll: select.poll, limit_s: float | None) -> None:
    """Wait until the socket is ready. Raises TimeoutError."""
    if not poll.poll(None if limit_s is None else limit_s * 1e3):
        raise TimeoutError


@contextlib.contextmanager
def _as_closed() -> Iterator[None]:
    """Turn an error of the socket into ChannelClosed, except a timeout."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise ChannelClosed("the other side is gone.") from error
