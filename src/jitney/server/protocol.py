"""HTTP/1.1 on one connection, by uvicorn, with the limits that it lacks. Event loop.

A connection that does not bring whole headers in time is closed, what is no HTTP is refused in
the shape of all other errors, one whose client does not read is cut, and a response can write to
its connection without the layers in between. What arrives while a request is being answered is
kept for later, and the connection is read on, so that its end is noticed.
"""

import asyncio
import fcntl
import json
import logging
import re
import socket
import struct
import sys
import termios
import uuid
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jitney.server import limits
from jitney.server.errors import UNAVAILABLE, Refusal
from jitney.server.files import connections_max

_log = logging.getLogger("jitney.server")

_SO_NWRITE = 0x1024
"""Python has no name for it: macOS tells by it what `_held_by_system` asks."""
_BARE_NEWLINE = re.compile(rb"[^\r]\n")


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol; a subclass, because that is how it is extended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: as uvicorn calls it
        super().__init__(*args, **kwargs)
        self.app = _with_shortcuts(self.app, self)
        self._header_timer: asyncio.TimerHandle | None = None
        self._early = bytearray()
        self._unsent_bytes = 0
        self._taken_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody called; the headers are awaited."""
        super().connection_made(transport)
        if len(self.connections) > connections_max():
            message = "The server has as many connections as it may; try again later."
            self._refuse(Refusal(503, message, code="too_many_connections", type=UNAVAILABLE))
            return
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._stop_timer()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """More of a request, or of the next one."""
        if self._is_answering:
            self._early += data
            if len(self._early) > limits.HEADER_BYTES_MAX:
                self.transport.abort()
            return
        if self.conn.their_state is h11.IDLE and _has_bare_newline(
            self.conn.trailing_data[0][-3:], data
        ):
            self.send_400_response("")
            return
        super().data_received(data)
        if self._is_answering and self.flow.read_paused:
            # Something came along with the request; without reading nobody is seen to leave.
            self.flow.resume_reading()
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._header_timer is None and not self.transport.is_closing():
            # The beginning of another request, on a connection that was kept.
            self._await_headers()

    def on_response_complete(self) -> None:
        """The next request may have come already."""
        super().on_response_complete()
        if self._early and not self.transport.is_closing():
            early, self._early = bytes(self._early), bytearray()
            self.data_received(early)

    def write_piece(self, piece: bytes) -> bool:
        """Send one more piece of a chunked body; False when the client is behind: await it then.

        Each layer that a response passes on its way out costs as much as the write itself.
        """
        assert piece, "an empty piece would be the end of the body"
        if self.flow.write_paused:
            return False
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn's would tell the operator to install something, because some client asked."""
        _log.debug("a client wanted another protocol; it is answered in HTTP/1.1")

    def cut_if_stalled(self, limit_s: float) -> None:
        """To be called now and then: ends a connection whose client has taken nothing for so long,
        though the system holds as much as it may for it and there is more."""
        unsent_bytes, before = self._count_unsent(), self._unsent_bytes
        # While more is written, how much is left says nothing of what was taken.
        is_writing = self._is_answering and not self.flow.write_paused
        self._unsent_bytes = unsent_bytes
        if unsent_bytes == 0 or unsent_bytes < before or before == 0 or is_writing:
            self._taken_at = self.loop.time()
        elif self.loop.time() - self._taken_at >= limit_s:
            _log.info("a client took nothing for %g s; its connection is cut", limit_s)
            self.transport.abort()

    def _count_unsent(self) -> int:
        """What the client has not taken; 0 when the system has all of it."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes:
            # By itself ours falls in large steps: the system asks for more when much was taken.
            unsent_bytes += _held_by_system(self.transport.get_extra_info("socket"))
        return unsent_bytes

    @property
    def _is_answering(self) -> bool:
        """Whether a request was read whole, and its answer is not complete."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or too much of it, and close."""
        self._stop_timer()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # A response is under way: there is no place for another one.
            self.transport.close()
            return
        refusal = Refusal(400, "The request is not valid HTTP.", code="invalid_http")
        self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        body = json.dumps(refusal.body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", f"req-{uuid.uuid4().hex}".encode()),
            (b"connection", b"close"),
        ]
        try:
            for event in (
                h11.Response(status_code=refusal.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            _log.debug("a connection was in no state to be told why it ends")
        self.transport.close()

    def _await_headers(self) -> None:
        self._stop_timer()
        self._header_timer = self.loop.call_later(limits.HEADER_S_MAX, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._refuse(
                Refusal(
                    408,
                    f"The headers did not arrive within {limits.HEADER_S_MAX:g} s.",
                    code="request_timeout",
                )
            )
        else:
            # It never said anything, so there is nothing to answer.
            self.transport.close()


def _held_by_system(connection: socket.socket | None) -> int:
    """What was given to the system and not acknowledged by the other side, where it tells."""
    if connection is None:
        return 0
    try:
        if sys.platform == "darwin":
            return connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
        count = bytearray(struct.calcsize("i"))
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):
        return 0
    return int.from_bytes(count, sys.byteorder)


def _has_bare_newline(before: bytes, data: bytes) -> bool:
    """Whether headers end a line without a carriage return, where readers disagree on its end.

    `before` are the last bytes that were looked at already, up to three.
    """
    head = (before + data).partition(b"\r\n\r\n")[0]
    return _BARE_NEWLINE.search(head) is not None or (not before and head.startswith(b"\n"))


def _with_shortcuts(app: ASGIApp, protocol: GuardedProtocol) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            offered = scope.setdefault("extensions", {})
            if scope["http_version"] == "1.1":
                # In HTTP/1.0 a body without a length has no chunks.
                offered["jitney.write_piece"] = protocol.write_piece
        await app(scope, receive, send)

    return call
