"""Answers to one HTTP request for completions: whole, or as a stream. Event loop.

A task of its own waits for the client to leave; when it does, the requests are cancelled, and
their slots are free within two ticks, whether they ran or waited. A stream's status line waits
for the first token or a moment, so that an early failure is an HTTP status; after it, a failure
of any kind is one event, and no `[DONE]`. Several prompts are one call: when the engine refuses
one, the others are given up at once.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from jitney.core.events import FinishReason
from jitney.engine.answer import Answer, Delta, Usage
from jitney.engine.handle import Handle
from jitney.errors import DeadlineExceeded, Draining, QueueFull
from jitney.server import limits
from jitney.server.admission.keys import Caller
from jitney.server.http import sse
from jitney.server.http.middleware import told
from jitney.server.http.slices import written
from jitney.server.openai.error_object import ClientLeft, Refusal, refusal_of
from jitney.server.openai.replies import Reply
from jitney.server.openai.translate import Asked
from jitney.server.service import Service, Ticket

Placed = tuple[int, Delta]
"""A delta, with the place of its request among those of the HTTP request."""

_TOLD_REASONS = (None, FinishReason.STOP, FinishReason.LENGTH)


class Answering:
    """The requests of one HTTP request, from their sending to their end."""

    def __init__(
        self, service: Service, asked: Asked, reply: Reply, caller: Caller, http_id: str
    ) -> None:
        self._service = service
        self._asked = asked
        self._reply = reply
        self._caller = caller
        self.http_id = http_id
        self.tickets = [Ticket(request.id) for request in asked.requests]
        self._handles: list[Handle[Answer]] = []

    def send(self) -> None:
        """Hand the requests to the engine.

        Raises QueueFull and EngineStopped, and what says that the caller's rate is used up.
        """
        service, asked, requests = self._service, self._asked, self._asked.requests
        service.bill(requests, self._caller)
        try:
            for request in requests:
                handle = service.engine.send(
                    request,
                    streams=asked.streams,
                    is_bounded=asked.streams,
                    arrived_at=asked.arrived_at,
                )
                self._handles.append(handle)
        except BaseException:
            for request in requests[len(self._handles) :]:
                service.unbill(request.id)
            raise

    def cancel(self) -> None:
        """Ask that everything end; idempotent."""
        for handle in self._handles:
            handle.cancel()

    @contextlib.contextmanager
    def lasting(self) -> Iterator[None]:
        """While this is open the service knows of the requests, and they end at their deadline.

        It is the engine that ends them, unless it is busy with a batch, or with a new backend.
        """
        due_at, timer = self._asked.due_at, None
        if due_at is not None:
            wait_s = due_at - self._service.clock.now() + limits.DEADLINE_GRACE_S
            timer = asyncio.get_running_loop().call_later(wait_s, self._abandon)
        try:
            known = self._service.live_calls.known(self._caller.name, self._asked.id, self._handles)
            with self._service.ticketed(self.tickets), known:
                yield
        finally:
            if timer is not None:
                timer.cancel()

    def _abandon(self) -> None:
        for handle in self._handles:
            handle.abandon(DeadlineExceeded("the request passed its deadline."))

    async def accepted(self) -> None:
        """Wait until the engine took all of several requests. Raises the refusal of any."""
        if len(self._handles) > 1:
            for handle in self._handles:
                await handle.wait_accepted_async()

    async def whole(self, receive: Receive) -> Response:
        """The reply, when all of it is known."""
        with self.lasting():
            watcher: asyncio.Task[None] | None = None
            try:
                self.send()
                watcher = asyncio.create_task(self._watch(receive))
                await self.accepted()
                answers = [await handle.result_async() for handle in self._handles]
            finally:
                self.cancel()
                if watcher is not None:
                    watcher.cancel()
        if any(answer.was_cancelled for answer in answers):
            raise self.cancelled()
        if self._value_count(answers) > limits.INLINE_VALUES_MAX:
            content = await asyncio.to_thread(lambda: written(self._reply.whole(answers)))
            headers = self._times(answers)
            return Response(content, media_type="application/json", headers=headers)
        return JSONResponse(self._reply.whole(answers), headers=self._times(answers))

    def _value_count(self, answers: list[Answer]) -> int:
        """Tokens and logprobs of the reply, which is what takes time to write out."""
        count = 0
        for answer in answers:
            params = answer.request.params
            made = sum(len(each.tokens) for each in answer.completions)
            count += made if params.logprobs is None else made * (params.logprobs + 2)
            if params.prompt_logprobs is not None:
                count += len(answer.request.prompt) * (params.prompt_logprobs + 2)
        return count

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()

    def cancelled(self) -> Exception:
        """Why a request that nobody here gave up has ended."""
        if self._service.is_stopping:
            refusal = refusal_of(Draining("the server was shut down."))
            refusal.message = "The answer was cut short by a shutdown of the server; ask again."
            return refusal
        endings = [handle.ending for handle in self._handles]
        answers = [each.answer for each in endings if each is not None and each.answer is not None]
        messages = [each.message for answer in answers for each in answer.completions]
        said = next((each for each in messages if each), "The request was cancelled.")
        return Refusal("cancelled", said)

    def deltas(self) -> AsyncGenerator[Placed, None]:
        """Deltas of all requests as they come. Raises at the end what went wrong."""
        if len(self.tickets) == 1:
            return self._read(0)
        return self._read_all()

    async def _read_all(self) -> AsyncGenerator[Placed, None]:
        await self.accepted()
        # One place for each: a reader that is behind leaves the rest to be merged.
        queue: asyncio.Queue[Placed | Exception | None] = asyncio.Queue(len(self._handles))
        tasks = [
            asyncio.create_task(_pump(self._read(place), queue))
            for place in range(len(self._handles))
        ]
        try:
            open_count = len(tasks)
            while open_count:
                item = await queue.get()
                if item is None:
                    open_count -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()

    async def _read(self, place: int) -> AsyncGenerator[Placed, None]:
        """Deltas of one request; ends that OpenAI has no word for are raised, not passed on."""
        is_cut = False
        async for delta in self._handles[place]:
            if delta.finish_reason in _TOLD_REASONS:
                yield place, delta
                continue
            is_cut = True
            if delta.text or delta.tokens:
                yield place, replace(delta, finish_reason=None, stop_reason=None)
        if is_cut:
            raise self.cancelled()

    def usages(self) -> list[Usage]:
        """What each request was counted, as far as it is known."""
        answers = (handle.ending.answer for handle in self._handles if handle.ending is not None)
        return [answer.usage for answer in answers if answer is not None]

    def stream(self) -> "EventStream":
        """The reply as server-sent events."""
        return EventStream(self)

    def chunks(self, placed: Placed) -> bytes:
        """A delta, framed."""
        place, delta = placed
        return b"".join(map(sse.frame, self._reply.chunks(place, delta)))

    def closing(self) -> bytes:
        """The end of a stream that went well."""
        if not self._asked.wants_usage:
            return sse.DONE
        return sse.frame(self._reply.usage_chunk(self.usages())) + sse.DONE

    @property
    def service(self) -> Service:
        """Where it is served."""
        return self._service

    def queue_headers(self) -> dict[str, str]:
        """What is known of the wait at this moment."""
        return queue_headers(self.tickets)

    def _times(self, answers: list[Answer]) -> dict[str, str]:
        timings = [answer.timing for answer in answers]
        headers = self.queue_headers()
        firsts = [each.first_token_s for each in timings if each.first_token_s is not None]
        if firsts:
            headers["x-jitney-first-token-ms"] = f"{min(firsts) * 1e3:.1f}"
        headers["x-jitney-total-ms"] = f"{max(each.total_s for each in timings) * 1e3:.1f}"
        return headers


def queue_headers(tickets: list[Ticket]) -> dict[str, str]:
    """The place in the line at acceptance, and the wait until the first slot once it is over."""
    headers: dict[str, str] = {}
    positions = [each.queue_position for each in tickets if each.queue_position is not None]
    if positions:
        headers["x-jitney-queue-position"] = str(min(positions))
    waits = [each.waited_ms for each in tickets if each.waited_ms is not None]
    if waits:
        headers["x-jitney-queue-ms"] = f"{max(waits):.1f}"
    return headers


class EventStream(Response):
    """A response that sends events while the engine makes them.

    A subclass, because that is what the framework takes for a response. `open` comes first: it
    raises what is to be an HTTP status.
    """

    media_type = "text/event-stream"

    def __init__(self, answering: Answering) -> None:
        super().__init__(headers=sse.HEADERS)
        # Set for an empty body, which this one is not.
        del self.headers["content-length"]
        self._answering = answering
        self._service = answering.service
        self._deltas = answering.deltas()
        self._first: asyncio.Task[Placed] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._lasting = contextlib.ExitStack()
        self._send: Callable[[bytes], Awaitable[None]] | None = None
        self._sent_at = 0.0

    async def open(self, receive: Receive) -> None:
        """Wait for the first delta, or long enough. Raises what went wrong until then."""
        answering = self._answering
        self._lasting.enter_context(answering.lasting())
        try:
            answering.send()
            self._watcher = asyncio.create_task(self._watch(receive))
            # A task, because waiting for it can end without ending it.
            self._first = asyncio.create_task(_next(self._deltas))
            await self._wait_first(self._first)
        except BaseException:
            await self._close()
            raise

    async def _wait_first(self, first: asyncio.Task[Placed]) -> None:
        waited_s = 0.0
        while waited_s < limits.ACCEPT_S_MAX:
            await asyncio.wait({first}, timeout=limits.HEADERS_WAIT_S)
            waited_s += limits.HEADERS_WAIT_S
            if first.done():
                first.result()
                return
            if all(ticket.is_accepted for ticket in self._answering.tickets):
                return
        raise QueueFull(
            f"the engine did not look at the request within {limits.ACCEPT_S_MAX:g} s; "
            "try again later.",
            limits.ACCEPT_S_MAX,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything there is."""
        # Offered by our own protocol, beyond ASGI.
        write_piece = scope.get("extensions", {}).get("jitney.write_piece")

        async def send_body(body: bytes, more_body: bool = True) -> None:
            self._sent_at = self._service.clock.now()
            if more_body and write_piece is not None and write_piece(body):
                return
            await send({"type": "http.response.body", "body": body, "more_body": more_body})

        try:
            self.headers.update(self._answering.queue_headers())
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            self._send = send_body
            closing = await self._run(send_body)
            # From here on no ping: it would come after the end.
            self._send = None
            await send_body(closing, more_body=False)
        finally:
            self._send = None
            await self._close()

    async def _run(self, send_body: Callable[[bytes], Awaitable[None]]) -> bytes:
        """Send all deltas; what is to be sent last comes back."""
        first, answering = self._first, self._answering
        assert first is not None, "opened"
        try:
            placed: Placed | None = await first
            while placed is not None:
                # A delta may add nothing yet, such as half a tool call.
                if piece := answering.chunks(placed):
                    await send_body(piece)
                placed = await anext(self._deltas, None)
            return answering.closing()
        except ClientLeft:
            return b""
        except Exception as error:
            return sse.frame(told(error, answering.http_id).body)

    async def _watch(self, receive: Receive) -> None:
        """Until the client leaves; meanwhile, a comment when nothing else was sent for long."""
        ping_s = self._service.settings.sse_ping_interval
        while True:
            try:
                async with asyncio.timeout(ping_s):
                    if (await receive())["type"] == "http.disconnect":
                        break
            except TimeoutError:
                is_idle = self._service.clock.now() - self._sent_at >= ping_s
                if self._send is not None and is_idle:
                    await self._send(sse.PING)
        self._answering.cancel()

    async def _close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._first is not None and not self._first.done():
            self._first.cancel()
            with contextlib.suppress(BaseException):
                await self._first
        await self._deltas.aclose()
        self._answering.cancel()
        self._lasting.close()


async def _next(deltas: AsyncIterator[Placed]) -> Placed:
    return await anext(deltas)


async def _pump(
    deltas: AsyncIterator[Placed], queue: "asyncio.Queue[Placed | Exception | None]"
) -> None:
    try:
        async for placed in deltas:
            await queue.put(placed)
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
