"""HTTP/1.1 on one connection, by uvicorn, with the limits that it lacks. Event loop.

A connection is always in one of these states, and each has an end:

    state    waits for                                 ends after                 with
    HEAD     the headers of a request                  HEADER_S_MAX               408
    BODY     the rest of its body                      BODY_S_MAX, or what its    408 by its reader
                                                       reader allows
    RESPONSE the response to what was read whole       the client takes nothing   being cut
                                                       for SEND_S_MAX
    REST     a short body that was answered early      LINGER_S_MAX               being closed
    IDLE     the next request                          KEEP_ALIVE_S               being closed
    LINGER   the client to read that it was the last   LINGER_S_MAX               being closed

The time of a state starts when the state begins; more bytes do not extend it. Bytes that arrive in
LINGER are thrown away. Bytes that arrive in RESPONSE are kept, up to a bound, so that we notice the
end of the connection. Bytes that are not HTTP get an error in the usual form. A response can write
to its connection without the layers in between.
"""

import asyncio
import enum
import fcntl
import json
import logging
import select
import socket
import struct
import sys
import termios
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from jitney.server import limits
from jitney.server.error_object import ClientLeft, Refusal, retry_headers
from jitney.server.http.connections import Rounds, connections_max
from jitney.server.http.strict import StrictConnection

_log = logging.getLogger("jitney.server")

CROWDED_S = 1.0
"""When to try again if the server has too many connections or too much to read."""

_SO_NWRITE = 0x1024
"""The option of macOS for `_held_by_system`; Python has no name for it."""


class ConnectionState(enum.Enum):
    """What a connection waits for: see the table at the top of this file."""

    HEAD = enum.auto()
    BODY = enum.auto()
    RESPONSE = enum.auto()
    REST = enum.auto()
    IDLE = enum.auto()
    LINGER = enum.auto()


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol; a subclass, because that is how it is extended."""

    conn: StrictConnection
    flow: "_Flow"

    def __init__(
        self,
        *args: Any,  # Any: as uvicorn's
        rounds: Rounds,
        note: Callable[[Refusal], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._note = note
        self.app = self._call_app
        self.conn = StrictConnection(rounds)
        self.state: ConnectionState | None = None
        self._rounds = rounds
        self._timer: asyncio.TimerHandle | None = None
        self._is_lingering = False
        self._unsent_bytes = 0
        self._taken_at = 0.0
        self._leave_calls: set[Callable[[], None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected; its headers are awaited."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        transport.set_write_buffer_limits(limits.UNWRITTEN_BYTES_MAX)
        if len(self.connections) > connections_max():
            message = "The server has as many connections as it may; try again later."
            self._write_refusal(_try_later(message, code="too_many_connections"))
            # At once: it has sent nothing yet, and has no place.
            transport.close()
            return
        self._enter_state()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_timer()
        self._rounds.leave(self.handle_events)
        super().connection_lost(exc)
        self._drop_unread()
        self._tell_left()

    def data_received(self, data: bytes) -> None:
        """More of a request, or of the next one."""
        if self._is_lingering or self.transport.is_closing():
            return
        self.conn.receive_data(data)
        if self._is_responding:
            if len(self.conn.held) > limits.HEADER_BYTES_MAX:
                self.transport.abort()
        elif not self.flow.is_held:
            self.handle_events()

    def handle_events(self) -> None:
        """Read a share in this round of the event loop; the next round reads more."""
        if self._is_lingering or self.transport.is_closing():
            return
        if self.flow.is_held and _has_left(self.transport.get_extra_info("socket")):
            # We read nothing from it now, so nothing else shows its end.
            self.transport.abort()
            return
        self.conn.begin()
        super().handle_events()
        if self.cycle is not None and self.cycle.transport is self.transport:
            # uvicorn would close it while the client still sends.
            self.cycle.transport = _LingeringTransport(self.transport, self)  # type: ignore[assignment]
        if self._has_too_much:
            self.transport.abort()
            return
        if self.conn.is_behind and not self._is_lingering:
            self._wait_round()
        else:
            self.flow.release()
        self._enter_state()

    def _wait_round(self) -> None:
        """Let others have their turn. New bytes stay in the system's buffer meanwhile."""
        held_bytes = len(self.conn.held)
        if self._rounds.is_crowded and held_bytes > limits.BODY_BYTES_SPARED:
            message = "The server reads as many large bodies as it may; try again later."
            self.conn.refusal = _try_later(message, code="too_many_bodies")
            self.send_400_response("")
            return
        self.flow.hold()
        # A large request waits with those that are partly read.
        is_begun = self.conn.has_begun or held_bytes > limits.HEAD_BYTES_USUAL
        self._rounds.wait(self.handle_events, is_begun=is_begun, held_bytes=held_bytes)

    def on_response_complete(self) -> None:
        """The next request may have come already."""
        self.server_state.total_requests += 1
        # Nobody needs the body now, and an idle connection would keep it.
        self.cycle.body.clear()
        if self._is_lingering or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.conn.our_state is self.conn.their_state is h11.DONE:
            self.conn.start_next_cycle()
        elif not self.cycle.more_body or not self.conn.is_short:
            self.linger()
        self._enter_state()
        if self.conn.held:
            self.handle_events()

    def shutdown(self) -> None:
        """The server ends: close the connection, after its response if one is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    async def _call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app use the connection directly."""
        scope["extensions"] = {
            "jitney.must_end": self.must_end,
            "jitney.allow_body": self.allow_body,
            "jitney.when_left": self.when_left,
        }
        if scope["http_version"] == "1.1":
            # In HTTP/1.0 a body without a length has no chunks.
            scope["extensions"]["jitney.write_piece"] = self.write_piece
        await self.config.loaded_app(scope, receive, send)

    def must_end(self) -> bool:
        """Whether a response that begins now is the last one of its connection."""
        return self.cycle.more_body and not self.conn.is_short

    def allow_body(self, seconds: float) -> None:
        """Let the body that is being read take so long, from now on. Its reader bounds it then."""
        if self.state is ConnectionState.BODY and not self.transport.is_closing():
            self._stop_timer()
            self._timer = self.loop.call_later(seconds, self._time_out)

    def when_left(self, act: Callable[[], None]) -> Callable[[], object]:
        """Have `act` called if the client leaves; the result takes that back. A task for each
        call, which waits for that, takes longer than all of this."""
        if self.cycle.disconnected or self.transport.is_closing():
            return self.loop.call_soon(act).cancel
        # Only who reads sees the end of the connection.
        self.flow.resume_reading()
        self._leave_calls.add(act)
        return partial(self._leave_calls.discard, act)

    def _tell_left(self) -> None:
        calls, self._leave_calls = self._leave_calls, set()
        for act in calls:
            act()

    def linger(self) -> None:
        """Send nothing more, and throw away what comes, until the client has read the response."""
        if self._is_lingering or self.transport.is_closing():
            return
        self._is_lingering = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # Nobody reads the rest of its response.
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
            self._tell_left()
        self._rounds.leave(self.handle_events)
        self._drop_unread()
        self.flow.release()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._enter_state()

    def write_piece(self, piece: bytes) -> bool:
        """Send one more piece of a chunked body. False when the client is slow: then use `send`.

        Each layer that a response passes on its way out costs as much as the write itself.
        Raises ClientLeft, so that no more text is made for a client that has left.
        """
        assert piece, "An empty piece would end the body"
        if self.transport.is_closing():
            raise ClientLeft
        if self.flow.write_paused:
            return False
        if not self._is_lingering:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _unsupported_upgrade_warning(self) -> None:
        """Replaces uvicorn's warning, which asks the operator to install something."""
        _log.debug("A client wanted another protocol; it is answered in HTTP/1.1")

    def cut_if_stalled(self, limit_s: float) -> None:
        """Cut the connection if its client has read nothing for so long, while the system's buffer
        is full and we hold more. To be called now and then."""
        unsent_bytes, before = self._count_unsent(), self._unsent_bytes
        # While we write, the rest does not show how much the client has read.
        is_writing = self._is_responding and not self.flow.write_paused
        self._unsent_bytes = unsent_bytes
        if unsent_bytes == 0 or unsent_bytes < before or before == 0 or is_writing:
            self._taken_at = self.loop.time()
        elif self.loop.time() - self._taken_at >= limit_s:
            _log.info("A client took nothing for %g s; its connection is cut", limit_s)
            self.transport.abort()

    def _count_unsent(self) -> int:
        """Bytes that the client has not read; 0 when the system holds all of them."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes:
            # Our own buffer shrinks in large steps, so the system's buffer is counted too.
            unsent_bytes += _held_by_system(self.transport.get_extra_info("socket"))
        return unsent_bytes

    @property
    def _is_responding(self) -> bool:
        """Whether a request was read whole, and its response is not complete."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    @property
    def _has_too_much(self) -> bool:
        """Whether too much of a body has come that nobody has read."""
        # Nobody reads it while the client does not read earlier responses.
        is_stuck = self.flow.write_paused
        bytes_max = limits.BODY_BYTES_SPARED if is_stuck else limits.BODY_UNREAD_BYTES_MAX
        return self.cycle is not None and len(self.cycle.body) > bytes_max

    def _drop_unread(self) -> None:
        """Free what nobody reads. The objects refer to each other, and the garbage collector
        runs seldom."""
        self.conn.held.clear()
        if self.cycle is not None:
            self.cycle.body.clear()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or too much of it, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # A response is being sent: a second one has no place.
            self.transport.close()
            return
        self._write_refusal(self.conn.refusal)
        self.linger()

    def _write_refusal(self, refusal: Refusal) -> None:
        body = json.dumps(refusal.body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", f"req-{uuid.uuid4().hex}".encode()),
            (b"connection", b"close"),
            *((name.encode(), value.encode()) for name, value in refusal.headers.items()),
        ]
        self._note(refusal)
        try:
            for event in (
                h11.Response(status_code=refusal.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            _log.debug("A connection could not be sent why it ends")

    def _find_state(self) -> ConnectionState:
        cycle, theirs = self.cycle, self.conn.their_state
        if self._is_lingering:
            return ConnectionState.LINGER
        if cycle is None:
            return ConnectionState.HEAD
        if cycle.response_complete and theirs is h11.IDLE:
            return ConnectionState.HEAD if self.conn.held else ConnectionState.IDLE
        if theirs is h11.SEND_BODY:
            return ConnectionState.REST if cycle.response_complete else ConnectionState.BODY
        return ConnectionState.RESPONSE

    def _enter_state(self) -> None:
        """Start the timer of the state, if the state has changed."""
        state = self._find_state()
        if state is self.state:
            return
        self.state = state
        self._stop_timer()
        limit_s = _limit_s(state)
        if limit_s is not None and not self.transport.is_closing():
            self._timer = self.loop.call_later(limit_s, self._time_out)

    def _stop_timer(self) -> None:
        self._rounds.leave(self._give_up)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        """The time is over, perhaps for thousands at once. Close them in turns."""
        self._timer = None
        self._rounds.wait(self._give_up, is_begun=True)

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        self._rounds.take(limits.STEPS_PER_END)
        if self.state is ConnectionState.HEAD and self.flow.is_held:
            # Its bytes wait to be read; their turn comes soon.
            self._timer = self.loop.call_later(limits.HEADER_S_MAX, self._time_out)
        elif self.state is ConnectionState.HEAD and self.conn.held:
            message = f"The headers did not arrive within {limits.HEADER_S_MAX:g} s."
            self._rounds.take(limits.STEPS_PER_REQUEST)
            self._write_refusal(Refusal("request_timeout", message))
            self.linger()
        else:
            # It was answered, or has sent nothing.
            self.transport.close()


def _try_later(message: str, *, code: str) -> Refusal:
    return Refusal(code, message, headers=retry_headers(CROWDED_S))


class _Flow(FlowControl):
    """uvicorn's flow control, which pauses while a body is not read (`read_paused`), with our own
    pause (`is_held`). Nothing is read from the connection during either."""

    is_held = False

    def hold(self) -> None:
        """Read nothing more from the connection until it is released."""
        self.is_held = True
        # Even if `read_paused` is set: uvicorn resumes the transport when a request ends.
        self._transport.pause_reading()

    def release(self) -> None:
        """Read again, if it was held and its body has been read."""
        if self.is_held:
            self.is_held = False
            if not self.read_paused:
                self._transport.resume_reading()

    def resume_reading(self) -> None:
        """The body has been read: read on, unless it is held."""
        if self.is_held:
            self.read_paused = False
        else:
            super().resume_reading()


class _LingeringTransport:
    """The transport that a response sees. It closes when the client has had time to read."""

    def __init__(self, transport: asyncio.Transport, protocol: GuardedProtocol) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self._transport = transport
        self._protocol = protocol

    def close(self) -> None:
        """Close it: at once if the whole request was read."""
        if self._protocol.cycle.more_body:
            self._protocol.linger()
        else:
            self._transport.close()


def _limit_s(state: ConnectionState) -> float | None:
    """How long a connection may be in this state; None if something else ends it."""
    return {
        ConnectionState.HEAD: limits.HEADER_S_MAX,
        # The reader of the body gives up a little earlier, and says so.
        ConnectionState.BODY: limits.BODY_S_MAX + limits.LINGER_S_MAX,
        ConnectionState.REST: limits.LINGER_S_MAX,
        ConnectionState.IDLE: limits.KEEP_ALIVE_S,
        ConnectionState.LINGER: limits.LINGER_S_MAX,
    }.get(state)


def _held_by_system(connection: socket.socket | None) -> int:
    """Bytes that the system holds and the client has not acknowledged, if the system knows."""
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


def _has_left(connection: socket.socket | None) -> bool:
    """Whether the other side has ended the connection, though nothing is read from it."""
    if connection is None:
        return False
    poll = select.poll()
    try:
        # Systems without POLLRDHUP still show a reset.
        poll.register(connection.fileno(), getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True
