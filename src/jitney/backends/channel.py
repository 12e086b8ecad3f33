"""Frames over a socket: four bytes of length, then a message of `jitney.backends.wire`.

One thread at a time uses a channel; any other may close it. A frame has a greatest size, so a
damaged length cannot ask for all memory. A wait is bounded by the limit it is given: that long
for the other side to begin, and that long between two pieces of one frame.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from jitney.backends.wire import MalformedFrame, Message, decode_message, encode_message

FRAME_BYTES_MAX = 2**28
"""The tokens of the longest text that may be encoded, written out, stay below this."""

_LENGTH = struct.Struct(">I")
_PIECE_BYTES = 2**16


class ChannelClosed(Exception):
    """The other side is gone, or this side closed the channel."""


class Channel:
    """One end of a pair of sockets, speaking in messages."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # What was read and not yet handed out.
        self._read = bytearray()
        # Held while the socket is in use, so that its number is not given to another file.
        self._in_use = threading.Lock()

    def send(self, message: Message, limit_s: float | None = None) -> None:
        """Send a message whole. Raises ChannelClosed or TimeoutError."""
        frame = encode_message(message)
        if len(frame) > FRAME_BYTES_MAX:
            raise MalformedFrame(f"a message of {len(frame)} bytes is too long to be sent.")
        whole = _LENGTH.pack(len(frame)) + frame
        with self._in_use, _closing_told():
            sent_bytes = self._send_now(whole)
            if sent_bytes < len(whole):
                self._socket.settimeout(limit_s)
                self._socket.sendall(memoryview(whole)[sent_bytes:])

    def receive(self, limit_s: float | None = None) -> Message:
        """Wait for a message. Raises ChannelClosed, TimeoutError or MalformedFrame."""
        with self._in_use, _closing_told():
            self._socket.settimeout(limit_s)
            self._fill(_LENGTH.size)
            (length,) = _LENGTH.unpack_from(self._read)
            if length > FRAME_BYTES_MAX:
                raise MalformedFrame(f"a frame of {length} bytes is longer than any message.")
            end = _LENGTH.size + length
            self._fill(end)
            frame = bytes(memoryview(self._read)[_LENGTH.size : end])
            del self._read[:end]
        return decode_message(frame)

    def close(self) -> None:
        """End the channel for both sides, and wake whoever waits on it; idempotent."""
        # It may be closed, or the other side may have ended it first.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._in_use:
            self._socket.close()

    def _send_now(self, whole: bytes) -> int:
        """How much of it could be sent without waiting.

        A socket that may wait looks first whether it must, and gives the interpreter to another
        thread while it looks: a batch would leave only after that thread's turn.
        """
        self._socket.settimeout(0.0)
        try:
            return self._socket.send(whole)
        except BlockingIOError:
            return 0

    def _fill(self, length: int) -> None:
        """Read until there are so many bytes."""
        while len(self._read) < length:
            piece = self._socket.recv(_PIECE_BYTES)
            if not piece:
                raise ChannelClosed("the other side is gone.")
            self._read += piece


@contextlib.contextmanager
def _closing_told() -> Iterator[None]:
    """What goes wrong with a socket means that its other side is gone, unless it is the time."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise ChannelClosed("the other side is gone.") from error
