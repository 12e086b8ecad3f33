"""The requests of one call for completions, from their sending to their end: `Generation`.

When the client leaves, the requests are cancelled, and their slots are free within two ticks,
whether they ran or waited. Several prompts are one call: when the engine refuses one, the others
are cancelled at once. Event loop.

Tests: tests/e2e/server/test_streaming.py, test_calls_as_one.py and test_deadlines.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

from starlette.types import Receive

from jitney.core.events import FinishReason
from jitney.engine.answer import Answer, Delta, Usage
from jitney.errors import DeadlineExceeded, Draining
from jitney.server import limits
from jitney.server.admission.live_calls import Handles, LiveRequest
from jitney.server.call import Call
from jitney.server.error_object import Refusal, refusal_of
from jitney.server.http.disconnect import wait_disconnect
from jitney.server.openai.translate import PreparedCall
from jitney.server.service import Service

IndexedDelta = tuple[int, Delta]
"""A delta, with the index of its request among those of the call."""

_OPENAI_REASONS = (None, FinishReason.STOP, FinishReason.LENGTH)


class Generation:
    """The requests of one call. Used once."""

    def __init__(self, service: Service, prepared: PreparedCall, call: Call) -> None:
        self.service = service
        self.prepared = prepared
        self.call = call
        self._requests: list[LiveRequest] = []
        self._handles: Handles = []

    @contextlib.contextmanager
    def running(
        self, receive: Receive, ping: Callable[[], Awaitable[None]] | None = None
    ) -> Iterator[None]:
        """Send the requests. They end with this context, with the client, or at the deadline.

        `ping` is called every `PING_S` seconds. Raises QueueFull, EngineStopped,
        and a Refusal when the caller's rate is used up.
        """
        service, due_at = self.service, self.call.due_at
        with contextlib.ExitStack() as stack:
            name = self.call.caller.name
            stack.enter_context(
                service.live_calls.registered(name, self.prepared.id, self._handles)
            )
            if due_at is not None:
                # The engine itself may be busy with a batch or a new backend.
                wait_s = due_at - service.clock.now() + limits.DEADLINE_GRACE_S
                timer = asyncio.get_running_loop().call_later(wait_s, self._abandon)
                stack.callback(timer.cancel)
            stack.callback(self._cancel)
            self._send()
            watcher = asyncio.create_task(self._watch(receive, ping))
            stack.callback(watcher.cancel)
            yield

    def _send(self) -> None:
        service, prepared = self.service, self.prepared
        requests = prepared.requests
        self._requests = service.live_calls.reserve(requests, self.call.caller)
        try:
            for request in requests:
                handle = service.engine.send(
                    request,
                    streams=prepared.streams,
                    is_bounded=prepared.streams,
                    arrived_at=self.call.arrived_at,
                )
                self._handles.append(handle)
        except BaseException:
            for request in requests[len(self._handles) :]:
                service.live_calls.release(request.id)
            raise

    async def _watch(self, receive: Receive, ping: Callable[[], Awaitable[None]] | None) -> None:
        ping_s = None if ping is None else limits.PING_S
        await wait_disconnect(receive, ping_s, ping)
        self._cancel()

    def _cancel(self) -> None:
        for handle in self._handles:
            handle.cancel()

    def _abandon(self) -> None:
        for handle in self._handles:
            handle.abandon(DeadlineExceeded("The request passed its deadline."))

    @property
    def is_accepted(self) -> bool:
        """Whether the engine has accepted all requests."""
        return all(each.queue_position is not None for each in self._requests)

    async def answers(self) -> list[Answer]:
        """All answers, when they are complete. Raises the error of any request."""
        await self._wait_accepted()
        answers = [await handle.result_async() for handle in self._handles]
        if any(answer.was_cancelled for answer in answers):
            raise self._cancelled()
        return answers

    def deltas(self) -> AsyncGenerator[IndexedDelta, None]:
        """Deltas of all requests as they come. Raises the error of any request at the end."""
        return self._read(0) if len(self.prepared.requests) == 1 else self._read_all()

    async def _wait_accepted(self) -> None:
        """Wait until the engine has accepted all of several requests. Raises any refusal."""
        if len(self._handles) > 1:
            for handle in self._handles:
                await handle.wait_accepted_async()

    async def _read_all(self) -> AsyncGenerator[IndexedDelta, None]:
        await self._wait_accepted()
        # One place for each request: when the reader is slow, the engine merges further deltas.
        queue: asyncio.Queue[IndexedDelta | Exception | None] = asyncio.Queue(len(self._handles))
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

    async def _read(self, place: int) -> AsyncGenerator[IndexedDelta, None]:
        """Deltas of one request. An end without a name in OpenAI's interface raises an error."""
        is_cut = False
        async for delta in self._handles[place]:
            if delta.finish_reason in _OPENAI_REASONS:
                yield place, delta
                continue
            is_cut = True
            if delta.text or delta.tokens:
                yield place, replace(delta, finish_reason=None, stop_reason=None)
        # A fleet cancels without a delta that says so.
        ending = self._handles[place].ending
        answer = None if ending is None else ending.answer
        if is_cut or (answer is not None and answer.was_cancelled):
            raise self._cancelled()

    def _cancelled(self) -> Exception:
        """The error for a request that ended and was not cancelled here."""
        if self.service.is_stopping:
            refusal = refusal_of(Draining("The server was shut down."))
            refusal.message = "The answer was cut short by a shutdown of the server; ask again."
            return refusal
        messages = [each.message for answer in self._ended() for each in answer.completions]
        said = next((each for each in messages if each), "The request was cancelled.")
        return Refusal("cancelled", said)

    def _ended(self) -> list[Answer]:
        endings = [handle.ending for handle in self._handles]
        return [each.answer for each in endings if each is not None and each.answer is not None]

    def usages(self) -> list[Usage]:
        """The usage of each request that has ended."""
        return [answer.usage for answer in self._ended()]

    def queue_headers(self) -> dict[str, str]:
        """The place in the queue at acceptance, and the wait for the first slot once it is over."""
        headers: dict[str, str] = {}
        live = self._requests
        positions = [each.queue_position for each in live if each.queue_position is not None]
        if positions:
            headers["x-jitney-queue-position"] = str(min(positions))
        waits = [each.waited_ms for each in live if each.waited_ms is not None]
        if waits:
            headers["x-jitney-queue-ms"] = f"{max(waits):.1f}"
        return headers


async def _pump(
    deltas: AsyncIterator[IndexedDelta], queue: "asyncio.Queue[IndexedDelta | Exception | None]"
) -> None:
    try:
        async for placed in deltas:
            await queue.put(placed)
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
