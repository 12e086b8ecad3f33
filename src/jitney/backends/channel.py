"""Frames over a socket: four bytes of length, then a message of `jitney.backends.wire`.

One thread at a time uses a channel; any other may close it. A frame has a greatest size, so a
damaged length cannot ask for all memory. A wait is bounded by the limit it is given: that long
for the other side to begin, and that long between two pieces of one frame.
"""

import contextlib
import socket
import struct
import threading

from jitney.backends.wire import MalformedFrame, Message, decode_message, encode_message

FRAME_BYTES_MAX = 2**28
"""The tokens of the longest text that may be encoded, written out, stay below this."""

_LENGTH = struct.Struct(">I")
_PIECE_BYTES = 2**20


class ChannelClosed(Exception):
    """The other side is gone, or this side closed the channel."""


class Channel:
    """One end of a pair of sockets, speaking in messages."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # Held while the socket is in use, so that its number is not given to another file.
        self._in_use = threading.Lock()

    def send(self, message: Message, limit_s: float | None = None) -> None:
        """Send a message whole. Raises ChannelClosed or TimeoutError."""
        frame = encode_message(message)
        if len(frame) > FRAME_BYTES_MAX:
            raise MalformedFrame(f"a message of {len(frame)} bytes is too long to be sent.")
        with self._in_use:
            try:
                self._socket.settimeout(limit_s)
                self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            except TimeoutError:
                raise
            except OSError as error:
                raise ChannelClosed("the other side is gone.") from error

    def receive(self, limit_s: float | None = None) -> Message:
        """Wait for a message. Raises ChannelClosed, TimeoutError or MalformedFrame."""
        with self._in_use:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size, limit_s))
            if length > FRAME_BYTES_MAX:
                raise MalformedFrame(f"a frame of {length} bytes is longer than any message.")
            frame = self._read(length, limit_s)
        return decode_message(frame)

    def close(self) -> None:
        """End the channel for both sides, and wake whoever waits on it; idempotent."""
        # It may be closed, or the other side may have ended it first.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._in_use:
            self._socket.close()

    def _read(self, length: int, limit_s: float | None) -> bytes:
        pieces: list[bytes] = []
        missing = length
        try:
            self._socket.settimeout(limit_s)
            while missing:
                piece = self._socket.recv(min(missing, _PIECE_BYTES))
                if not piece:
                    raise ChannelClosed("the other side is gone.")
                pieces.append(piece)
                missing -= len(piece)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed("the other side is gone.") from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
