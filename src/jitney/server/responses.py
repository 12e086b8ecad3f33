"""Responses to one call for completions: whole, or as a stream. Event loop.

The status line of a stream waits a moment for the first token, so that an early failure is an HTTP
status. A later failure is one event, without `[DONE]`.

Tests: tests/unit/server/test_responses.py, tests/e2e/server/test_streaming.py and
test_rows_clients.py.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jitney.errors import QueueFull
from jitney.server import limits
from jitney.server.answer_call import Generation
from jitney.server.error_object import ClientLeft, refusal_for
from jitney.server.http.body_reader import unless_left, when_left

PING = b": ping\n\n"
"""A comment, for a stream that has nothing to say."""

EVENT_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""The last one asks nginx to pass events on as they come."""


async def respond(
    preparing: Coroutine[Any, Any, Generation], request: Request, ping: bytes = PING
) -> Response:
    """The response to a call that is being prepared; `ping` is what a silent stream says."""
    generation = await unless_left(preparing, request)
    if not generation.reply.streams:
        return await whole_response(generation, request)
    stream = EventStream(generation, ping)
    await stream.open(request)
    return stream


async def whole_response(generation: Generation, request: Request) -> Response:
    """The whole reply."""
    with when_left(request, generation.cancel):
        content = await generation.whole()
    headers = {**_queue_headers(generation), **_times(generation)}
    return Response(content, media_type="application/json", headers=headers)


def _unseen() -> QueueFull:
    return QueueFull(
        f"The engine did not look at the request within {limits.ACCEPT_S_MAX:g} s; "
        "try again later.",
        limits.ACCEPT_S_MAX,
    )


def _queue_headers(generation: Generation) -> dict[str, str]:
    """The place in the queue at acceptance, and the wait for the first slot once it is over."""
    headers: dict[str, str] = {}
    live = generation.live_requests
    positions = [each.queue_position for each in live if each.queue_position is not None]
    if positions:
        headers["x-jitney-queue-position"] = str(min(positions))
    waits = [each.waited_ms for each in live if each.waited_ms is not None]
    if waits:
        headers["x-jitney-queue-ms"] = f"{max(waits):.1f}"
    return headers


def _times(generation: Generation) -> dict[str, str]:
    timings = [each.timing for each in generation.answers()]
    headers: dict[str, str] = {}
    firsts = [each.first_token_s for each in timings if each.first_token_s is not None]
    if firsts:
        headers["x-jitney-first-token-ms"] = f"{min(firsts) * 1e3:.1f}"
    headers["x-jitney-total-ms"] = f"{max(each.total_s for each in timings) * 1e3:.1f}"
    return headers


class EventStream(Response):
    """A response that sends events while the engine makes them.

    A subclass, because the framework needs a response. Call `open` first: it raises errors that
    become an HTTP status.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, ping: bytes = PING) -> None:
        super().__init__(headers=EVENT_HEADERS)
        # The framework set it for an empty body.
        del self.headers["content-length"]
        self._generation = generation
        self._ping_event = ping
        self._service = generation.service
        self._loop_calls = generation.service.loop_calls
        self._running = contextlib.ExitStack()
        self._turn: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """Ends when the task of this response has something to do: events that could not be written
        at once, no events after the last, or an error."""
        self._is_noted = False
        """Whether the event loop has been asked to write the news."""
        self._write: Callable[[bytes], bool] | None = None
        """Writes events unless the client is slow; None before the headers are sent."""
        self._send: Callable[[bytes], Awaitable[None]] | None = None
        self._sent_at = 0.0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._pinging: asyncio.Task[None] | None = None

    async def open(self, request: Request) -> None:
        """Wait for the first events, or for a limited time. Raises errors until then."""
        try:
            self._running.enter_context(self._generation.running())
            self._running.enter_context(when_left(request, self._generation.cancel))
            await self._wait_accepted()
            self._generation.listen(self._note_news)
            await self._wait_first()
        except BaseException:
            self._close()
            raise

    async def _wait_accepted(self) -> None:
        limit = asyncio.timeout(limits.ACCEPT_S_MAX)
        try:
            async with limit:
                await self._generation.wait_accepted()
        except TimeoutError:
            # The error of a request may be a TimeoutError too.
            if not limit.expired():
                raise
            raise _unseen() from None

    async def _wait_first(self) -> None:
        waited_s = 0.0
        while waited_s < limits.ACCEPT_S_MAX:
            await asyncio.wait({self._turn}, timeout=limits.HEADERS_WAIT_S)
            waited_s += limits.HEADERS_WAIT_S
            if self._turn.done():
                self._turn.result()
                return
            if self._generation.is_accepted:
                return
        raise _unseen()

    def _note_news(self) -> None:
        """Any thread. Many prompts of one call may have news at once, which are read together."""
        if not self._is_noted:
            self._is_noted = True
            self._loop_calls.call(self._write_news)

    def _write_news(self) -> None:
        """Write the new events. No task runs for that: there are many streams, and each has news at
        every tick."""
        # First: what comes from now on is noted again.
        self._is_noted = False
        if self._turn.done():
            return
        try:
            events = self._generation.read(self._note_news)
            if events and (self._write is None or not self._write(events)):
                self._turn.set_result(events)
            elif self._generation.is_over:
                self._turn.set_result(b"")
        except Exception as error:
            self._turn.set_exception(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        # Our own protocol has this, beyond ASGI.
        write_piece = scope.get("extensions", {}).get("jitney.write_piece")

        def write(events: bytes) -> bool:
            self._sent_at = self._service.clock.now()
            return write_piece is not None and write_piece(events)

        async def send_body(body: bytes, more_body: bool = True) -> None:
            if not (more_body and write(body)):
                await send({"type": "http.response.body", "body": body, "more_body": more_body})

        try:
            self.headers.update(_queue_headers(self._generation))
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            self._send, self._write = send_body, write
            self._ping_later()
            closing = await self._run(send_body)
            # No ping after the end.
            self._send = None
            await send_body(closing, more_body=False)
        finally:
            # They lead back here, and the garbage collector runs seldom.
            self._send = self._write = None
            if self._ping_timer is not None:
                self._ping_timer.cancel()
            self._close()

    async def _run(self, send_body: Callable[[bytes], Awaitable[None]]) -> bytes:
        """Send all events, and return the bytes to send last."""
        generation = self._generation
        try:
            while events := await self._turn:
                await send_body(events)
                self._turn = asyncio.get_running_loop().create_future()
                self._write_news()
            return await self._closing()
        except ClientLeft:
            return b""
        except Exception as error:
            return generation.reply.failed(refusal_for(error, generation.call.id).body)

    async def _closing(self) -> bytes:
        return self._generation.reply.closing(self._generation.usages())

    def _ping_later(self) -> None:
        self._ping_timer = asyncio.get_running_loop().call_later(limits.PING_S, self._ping)

    def _ping(self) -> None:
        """Send something when nothing else was sent for a long time."""
        idle_s = self._service.clock.now() - self._sent_at
        # A client that takes nothing has one to take already.
        is_free = self._pinging is None or self._pinging.done()
        if is_free and idle_s >= limits.PING_S:
            self._pinging = asyncio.create_task(self._send_ping())
        self._ping_later()

    async def _send_ping(self) -> None:
        # The stream may have ended by now.
        if self._send is not None:
            with contextlib.suppress(ClientLeft):
                await self._send(self._ping_event)

    def _close(self) -> None:
        if self._turn.done() and not self._turn.cancelled():
            # An error that nobody asks for any more is no news for the log.
            self._turn.exception()
        self._turn.cancel()
        self._running.close()
