"""Reads bodies of requests, and notices that a client has left. Event loop.

`BodyReader` refuses as early as possible: a body that is too long is not read to its end, and
nothing of it is kept. A call counts as served once its body is complete. `unless_left` waits for
work that ends when the client leaves, and `when_left` calls somebody then.

Tests: tests/unit/server/http/test_body_reader.py and tests/e2e/server/test_bodies.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from jitney.errors import Draining
from jitney.server import limits
from jitney.server.admission.calls import Call
from jitney.server.admission.worker_threads import WorkerThreads
from jitney.server.error_object import ClientLeft, Refusal

ResultT = TypeVar("ResultT")

_CLOSE = {"connection": "close"}


@contextmanager
def when_left(request: Request, act: Callable[[], None]) -> Iterator[None]:
    """Within this context, `act` is called if the client leaves. Its body has been read.

    Our own connections call it themselves; elsewhere a task waits for the news.
    """
    call_when_left = request.scope.get("extensions", {}).get("jitney.when_left")
    if call_when_left is None:
        watcher = asyncio.create_task(_watch(request, act))
        forget: Callable[[], object] = watcher.cancel
    else:
        forget = call_when_left(act)
    try:
        yield
    finally:
        forget()


async def _watch(request: Request, act: Callable[[], None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    act()


async def unless_left(work: Awaitable[ResultT], request: Request) -> ResultT:
    """Return the result of the work, unless the client leaves first. Raises ClientLeft.

    Work that a thread has begun goes on then; work that waits never begins.
    """
    task, has_left = asyncio.current_task(), False
    assert task is not None, "it is called by a task"

    def leave() -> None:
        nonlocal has_left
        has_left = True
        task.cancel()

    with when_left(request, leave):
        try:
            return await work
        except asyncio.CancelledError:
            if not has_left or task.uncancel() > 0:
                raise
            raise ClientLeft from None


@dataclass(slots=True, eq=False)
class _Arrival:
    """One body on its way in. `reason` is set if we ended it early."""

    limit: asyncio.Timeout
    reason: Exception | None = None

    def end(self, reason: Exception) -> None:
        if not self.limit.expired():
            self.reason = reason
            self.limit.reschedule(0.0)


class BodyReader:
    """Reads bodies, and has large ones parsed one at a time in a thread; keys take turns.

    All threads of Python wait while one parses, so one parser is enough. It rests between two
    bodies: others have their turns then.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._arrivals: dict[_Arrival, None] = {}
        self._parser = WorkerThreads(1, has_several_callers=False, rests=True)

    @property
    def count(self) -> int:
        """How many are on their way in."""
        return len(self._arrivals)

    async def read(self, request: Request, check: Callable[[bytes], ResultT]) -> ResultT:
        """Read the body of a request, and return what `check` makes of the bytes.

        Raises Refusal, ClientLeft, Draining and QueueFull.
        """
        _check_type(request)
        call = Call.of(request.scope)
        content = await self._read(request, call)
        call.place.take()
        call.input_bytes = len(content)
        call.is_large = len(content) > limits.WORK_SMALL_BYTES
        call.is_tiny = len(content) <= limits.WORK_TINY_BYTES
        if len(content) <= limits.INLINE_BYTES_MAX:
            return check(content)
        # The limits on calls and on held bytes bound how many wait.
        parsing = self._parser.submit((call.caller.name, False), partial(check, content))
        return await unless_left(parsing, request)

    async def _read(self, request: Request, call: Call) -> bytes:
        length = request.headers.get("content-length")
        if length is not None and length.isdecimal() and int(length[:20]) > self._bytes_max:
            raise self._too_large()
        parts: list[bytes] = []
        count = 0
        async with self._arriving():
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                part = message.get("body", b"")
                count += len(part)
                if count > self._bytes_max:
                    raise self._too_large()
                call.place.hold(len(part))
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)

    @asynccontextmanager
    async def _arriving(self) -> AsyncIterator[None]:
        """A body is read within this context. Raises Refusal if it is too slow, and Draining."""
        if self.count >= limits.BODIES_READ_MAX:
            self._take_oldest().end(
                _timed_out("The body arrived more slowly than those of many others, and gave way.")
            )
        arrival = _Arrival(asyncio.timeout(limits.BODY_S_MAX))
        try:
            async with arrival.limit:
                self._arrivals[arrival] = None
                try:
                    yield
                finally:
                    # Before the timeout ends: afterwards it cannot be rescheduled.
                    self._arrivals.pop(arrival, None)
        except TimeoutError:
            message = f"The body did not arrive within {limits.BODY_S_MAX:g} s."
            raise arrival.reason or _timed_out(message) from None

    def drain(self) -> None:
        """End all bodies on their way in: their callers get the error Draining."""
        while self._arrivals:
            self._take_oldest().end(Draining("The server is shutting down."))

    def close(self) -> None:
        """Parse nothing more: the server has ended."""
        self._parser.close()

    def _take_oldest(self) -> _Arrival:
        oldest = next(iter(self._arrivals))
        del self._arrivals[oldest]
        return oldest

    def _too_large(self) -> Refusal:
        message = (
            f"The body is larger than {self._bytes_max} bytes, which is the most here; whoever "
            "runs the server can raise it with --body-limit."
        )
        return Refusal("request_too_large", message, headers=_CLOSE)


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if kind != "application/json":
        message = "The body must be JSON: send `Content-Type: application/json`."
    elif request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        message = "The body must not be compressed."
    else:
        return
    raise Refusal("unsupported_media_type", message)


def _timed_out(message: str) -> Refusal:
    return Refusal("request_timeout", message, headers=_CLOSE)
