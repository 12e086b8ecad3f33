"""Messages over a socket, each in a frame of `jitney.sandbox.frames`.

One thread at a time uses a channel; any other may close it.
"""

import socket

from jitney.backends.process.messages import Message, decode_message, encode_message
from jitney.sandbox.frames import ChannelClosed, Frames

__all__ = ["Channel", "ChannelClosed"]


class Channel:
    """One end of a pair of sockets, speaking in messages."""

    def __init__(self, end: socket.socket) -> None:
        self._frames = Frames(end)

    def send(self, message: Message, limit_s: float | None = None) -> None:
        """Send a message whole. Raises ChannelClosed or TimeoutError."""
        self._frames.send(encode_message(message), limit_s)

    def receive(self, limit_s: float | None = None) -> Message:
        """Wait for a message. Raises ChannelClosed, TimeoutError or MalformedFrame."""
        return decode_message(self._frames.receive(limit_s))

    def close(self) -> None:
        """End the channel for both sides, and wake whoever waits on it; idempotent."""
        self._frames.close()
