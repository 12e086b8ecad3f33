"""Responses to one call for completions: whole, or as a stream. Event loop.

The status line of a stream waits a moment for the first token, so that an early failure is an HTTP
status. A later failure is one event, without `[DONE]`.

Tests: tests/unit/server/test_responses.py, tests/e2e/server/test_streaming.py and
test_rows_clients.py.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from jitney.engine.answer import Answer
from jitney.errors import QueueFull
from jitney.server import limits
from jitney.server.error_object import ClientLeft
from jitney.server.generation import Generation, IndexedDelta
from jitney.server.http.error_response import refusal_for
from jitney.server.http.json_slices import encode_json
from jitney.server.openai.replies import Reply

_DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_EVENT_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""The last one asks nginx to pass events on as they come."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def frame(value: dict[str, Any]) -> bytes:  # Any: a JSON value
    """One server-sent event with a JSON object in it."""
    return b"data: " + _encode(value).encode("utf-8") + b"\n\n"


async def whole_response(generation: Generation, reply: Reply, receive: Receive) -> Response:
    """The whole reply."""
    with generation.running(receive):
        answers = await generation.answers()
    headers = {**generation.queue_headers(), **_times(answers)}
    if _value_count(answers) > limits.INLINE_VALUES_MAX:
        content = await asyncio.to_thread(lambda: encode_json(reply.whole(answers)))
        return Response(content, media_type="application/json", headers=headers)
    return JSONResponse(reply.whole(answers), headers=headers)


def _value_count(answers: list[Answer]) -> int:
    """Tokens and logprobs of the reply: the time to encode it depends on them."""
    count = 0
    for answer in answers:
        params = answer.request.params
        made = sum(len(each.tokens) for each in answer.completions)
        count += made if params.logprobs is None else made * (params.logprobs + 2)
        if params.prompt_logprobs is not None:
            count += len(answer.request.prompt) * (params.prompt_logprobs + 2)
    return count


def _times(answers: list[Answer]) -> dict[str, str]:
    timings = [answer.timing for answer in answers]
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

    def __init__(self, generation: Generation, reply: Reply) -> None:
        super().__init__(headers=_EVENT_HEADERS)
        # The framework set it for an empty body.
        del self.headers["content-length"]
        self._generation = generation
        self._reply = reply
        self._service = generation.service
        self._deltas = generation.deltas()
        self._first: asyncio.Future[IndexedDelta] | None = None
        self._running = contextlib.ExitStack()
        self._send: Callable[[bytes], Awaitable[None]] | None = None
        self._sent_at = 0.0

    async def open(self, receive: Receive) -> None:
        """Wait for the first delta, or for a limited time. Raises errors until then."""
        try:
            self._running.enter_context(self._generation.running(receive, self._ping))
            # A future, because a wait for it can time out while it goes on.
            self._first = asyncio.ensure_future(anext(self._deltas))
            await self._wait_first(self._first)
        except BaseException:
            await self._close()
            raise

    async def _wait_first(self, first: asyncio.Future[IndexedDelta]) -> None:
        waited_s = 0.0
        while waited_s < limits.ACCEPT_S_MAX:
            await asyncio.wait({first}, timeout=limits.HEADERS_WAIT_S)
            waited_s += limits.HEADERS_WAIT_S
            if first.done():
                first.result()
                return
            if self._generation.is_accepted:
                return
        raise QueueFull(
            f"The engine did not look at the request within {limits.ACCEPT_S_MAX:g} s; "
            "try again later.",
            limits.ACCEPT_S_MAX,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        # Our own protocol has this, beyond ASGI.
        write_piece = scope.get("extensions", {}).get("jitney.write_piece")

        async def send_body(body: bytes, more_body: bool = True) -> None:
            self._sent_at = self._service.clock.now()
            if more_body and write_piece is not None and write_piece(body):
                return
            await send({"type": "http.response.body", "body": body, "more_body": more_body})

        try:
            self.headers.update(self._generation.queue_headers())
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            self._send = send_body
            closing = await self._run(send_body)
            # No ping after the end.
            self._send = None
            await send_body(closing, more_body=False)
        finally:
            self._send = None
            await self._close()

    async def _run(self, send_body: Callable[[bytes], Awaitable[None]]) -> bytes:
        """Send all deltas, and return the bytes to send last."""
        first, generation = self._first, self._generation
        assert first is not None, "The stream is open"
        try:
            placed: IndexedDelta | None = await first
            while placed is not None:
                # Some deltas add nothing yet, such as half a tool call.
                if chunks := self._reply.chunks(*placed):
                    await send_body(b"".join(map(frame, chunks)))
                placed = await anext(self._deltas, None)
            if not generation.prepared.wants_usage:
                return _DONE
            return frame(self._reply.usage_chunk(generation.usages())) + _DONE
        except ClientLeft:
            return b""
        except Exception as error:
            return frame(refusal_for(error, generation.call.http_id).body)

    async def _ping(self) -> None:
        """Send a comment when nothing else was sent for a long time."""
        idle_s = self._service.clock.now() - self._sent_at
        if self._send is not None and idle_s >= limits.PING_S:
            await self._send(_PING)

    async def _close(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.cancel()
            with contextlib.suppress(BaseException):
                await self._first
        await self._deltas.aclose()
        self._running.close()
