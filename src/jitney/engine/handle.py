"""`Handle`: the caller's object for one request. It gives deltas and the answer, and can cancel.

The same object serves threads (`for`, `result`, `with`) and event loops (`async for`,
`result_async`, `async with`). It has one reader at a time. Leaving a `with` block cancels an
unfinished request; leaving a loop does not.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Generic, Protocol, Self, TypeVar

from jitney.core.request import Priority, Request, RequestId, read_priority
from jitney.core.rules.pauses import PauseOutcome
from jitney.engine.answer import Answer, Delta, Ending
from jitney.engine.mailbox import Awaited, Mailbox
from jitney.errors import JitneyError

ResultT = TypeVar("ResultT")
"""The form of answers for one kind of caller."""

OtherShape = TypeVar("OtherShape")


class Control(Protocol):
    """What a handle asks of the engine. Nothing waits, and ended requests are ignored."""

    def cancel(self, request_id: RequestId, mailbox: Mailbox) -> None:
        """Cancel a request."""

    def pause(self, request_id: RequestId, mailbox: Mailbox) -> Future[PauseOutcome]:
        """Pause a request until it is resumed."""

    def resume(self, request_id: RequestId, mailbox: Mailbox) -> None:
        """Let a paused request go on."""

    def reprioritise(self, request_id: RequestId, priority: Priority, mailbox: Mailbox) -> None:
        """Change the class of a request."""


class Handle(Generic[ResultT]):
    """One submitted request. Made by the engine. `shape` converts its answer to the form that the
    caller wants."""

    def __init__(
        self,
        request: Request,
        mailbox: Mailbox,
        control: Control,
        shape: Callable[[Answer], ResultT],
    ) -> None:
        self.request = request
        self._mailbox = mailbox
        self._control = control
        self._shape = shape

    def shaped(self, shape: Callable[[Answer], OtherShape]) -> "Handle[OtherShape]":
        """The same request with results in another form. Do not read this handle any more."""
        return Handle(self.request, self._mailbox, self._control, shape)

    @property
    def id(self) -> RequestId:
        """The request's id."""
        return self.request.id

    @property
    def is_done(self) -> bool:
        """Whether the request has ended. There may still be unread deltas."""
        return self._mailbox.ending is not None

    @property
    def ending(self) -> Ending | None:
        """The ending, also with what was made before an error; None before the end."""
        return self._mailbox.ending

    @property
    def output(self) -> ResultT | None:
        """What was made, also before an error; None before the end, or if nothing was made."""
        ending = self._mailbox.ending
        if ending is None or ending.answer is None:
            return None
        return self._shape(ending.answer)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when there is something to fetch, instead of iterating.

        The engine thread calls it. So it must be quick and must not use this handle.
        """
        self._mailbox.listen(listener)

    def fetch(self) -> Delta | Ending | None:
        """The oldest unread delta, then the ending; None if nothing is new. Never waits."""
        return self._mailbox.fetch()

    def read(self, listener: Callable[[], None]) -> list[Delta | Ending]:
        """All that is new; and `listen` for more, unless the ending is among it. Never waits."""
        return self._mailbox.read(listener)

    def cancel(self) -> None:
        """Cancel the request. Idempotent. Its answer is what was made until then."""
        if not self.is_done:
            self._control.cancel(self.id, self._mailbox)

    def pause(self) -> Future[PauseOutcome]:
        """Pause the request until it is resumed. Idempotent. The outcome comes between ticks.

        It makes no more tokens when its current batch has returned. If others need the room, its
        memory is given up and computed again later. Its time limits hold, and it keeps its age.
        After ten minutes of pauses in all it goes on by itself. At most a quarter of
        `max_num_queued_reqs`, and 1,024, may be paused; beyond that a pause has no effect, and the
        outcome says so.
        """
        if not self.is_done:
            return self._control.pause(self.id, self._mailbox)
        ended: Future[PauseOutcome] = Future()
        ended.set_result(PauseOutcome.ENDED)
        return ended

    def resume(self) -> None:
        """Let a paused request go on when it is its turn. Idempotent."""
        if not self.is_done:
            self._control.resume(self.id, self._mailbox)

    def reprioritise(self, priority: str | int) -> None:
        """Change the class of the request, by name or number; 3 is critical.

        It has an effect under the policy `priority`.
        """
        chosen = read_priority(priority)
        if not self.is_done:
            self._control.reprioritise(self.id, chosen, self._mailbox)

    def abandon(self, error: JitneyError) -> None:
        """Cancel, and end with this error without waiting for the engine."""
        self.cancel()
        self._mailbox.abandon(error)

    def result(self, timeout: float | None = None) -> ResultT:
        """Wait for the end. Raises TimeoutError (the request goes on) or the request's error."""
        self._mailbox.wait(Awaited.ENDING, timeout)
        return self._result()

    async def result_async(self) -> ResultT:
        """`result` for a task of an event loop. The task may use `asyncio.timeout`."""
        await self._mailbox.wait_async(Awaited.ENDING)
        return self._result()

    def wait_accepted(self, timeout: float | None = None) -> None:
        """Wait until the scheduler accepts the request. Raises its refusal, or TimeoutError."""
        self._mailbox.wait(Awaited.ACCEPTED, timeout)
        self._raise_refusal()

    async def wait_accepted_async(self) -> None:
        """`wait_accepted` for a task of an event loop."""
        await self._mailbox.wait_async(Awaited.ACCEPTED)
        self._raise_refusal()

    def __iter__(self) -> Iterator[Delta]:
        """Deltas as they come. At the end raises the request's error, if there is one."""
        return self._mailbox.deltas()

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Deltas as they come, in an event loop."""
        return self._mailbox.deltas_async()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.cancel()

    def _result(self) -> ResultT:
        ending = self._mailbox.ending
        assert ending is not None, "waited for"
        ending.raise_error()
        assert ending.answer is not None, "an ending without an error has an answer"
        return self._shape(ending.answer)

    def _raise_refusal(self) -> None:
        ending = self._mailbox.ending
        if ending is not None and ending.answer is None:
            ending.raise_error()
