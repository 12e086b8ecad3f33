"""A caller's end of one request: iterate its deltas, wait for its answer, cancel it.

The same object serves threads (`for`, `result`, `with`) and event loops (`async for`,
`result_async`, `async with`); it has one reader at a time. Leaving a `with` block cancels what is
unfinished; leaving a loop does not.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from jitney.core.request import Priority, Request, RequestId, read_priority
from jitney.engine.answer import Answer, Delta, Ending
from jitney.engine.mailbox import Awaited, Mailbox
from jitney.errors import JitneyError

Shape = TypeVar("Shape")
"""What callers of one edge want answers to look like."""

OtherShape = TypeVar("OtherShape")


class Control(Protocol):
    """What a handle asks of the engine; nothing waits, and an ended request is nobody's mistake."""

    def cancel(self, request_id: RequestId, mailbox: Mailbox) -> None:
        """Ask that a request end."""
        ...

    def pause(self, request_id: RequestId, mailbox: Mailbox) -> None:
        """Ask that a request do nothing until it is resumed."""
        ...

    def resume(self, request_id: RequestId, mailbox: Mailbox) -> None:
        """Ask that a paused request go on."""
        ...

    def reprioritise(self, request_id: RequestId, priority: Priority, mailbox: Mailbox) -> None:
        """Ask that a request be of another class."""
        ...


class Handle(Generic[Shape]):
    """One request that was handed in. Made by the engine; `shape` turns its answer into the
    form that the caller knows."""

    def __init__(
        self,
        request: Request,
        mailbox: Mailbox,
        control: Control,
        shape: Callable[[Answer], Shape],
    ) -> None:
        self.request = request
        self._mailbox = mailbox
        self._control = control
        self._shape = shape

    def shaped(self, shape: Callable[[Answer], OtherShape]) -> "Handle[OtherShape]":
        """The same request with results in another form; this handle is not to be read any more."""
        return Handle(self.request, self._mailbox, self._control, shape)

    @property
    def id(self) -> RequestId:
        """The request's id."""
        return self.request.id

    @property
    def is_done(self) -> bool:
        """Whether the request has ended; unread deltas may still be there."""
        return self._mailbox.ending is not None

    @property
    def ending(self) -> Ending | None:
        """How it ended, once it has: also what was made before an error."""
        return self._mailbox.ending

    @property
    def output(self) -> Shape | None:
        """What was made, once it has ended: also before an error. None where nothing was."""
        ending = self._mailbox.ending
        if ending is None or ending.answer is None:
            return None
        return self._shape(ending.answer)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this once, when there is something to fetch, in place of iterating.

        It is called by the engine thread, so it must be quick and leave this handle alone.
        """
        self._mailbox.listen(listener)

    def fetch(self) -> Delta | Ending | None:
        """The oldest unread delta, then the ending, or None: nothing new. Never waits."""
        return self._mailbox.fetch()

    def cancel(self) -> None:
        """Ask that the request end; idempotent. What was made until then is its answer."""
        if not self.is_done:
            self._control.cancel(self.id, self._mailbox)

    def pause(self) -> None:
        """Ask that the request do nothing until it is resumed; idempotent.

        It makes no further tokens once the batch that it is in has returned. Its memory is given
        up when others want the room and computed again then, its time limits hold, and it keeps
        its place by age. After ten minutes, all of its pauses together, it goes on by itself. A
        quarter as many as may wait may be paused; beyond that it just goes on.
        """
        if not self.is_done:
            self._control.pause(self.id, self._mailbox)

    def resume(self) -> None:
        """Ask that a paused request go on when it is its turn; idempotent."""
        if not self.is_done:
            self._control.resume(self.id, self._mailbox)

    def reprioritise(self, priority: str | int) -> None:
        """Ask that the request be of another class, by name or number; 3 is critical.

        Matters under the policy `priority`.
        """
        chosen = read_priority(priority)
        if not self.is_done:
            self._control.reprioritise(self.id, chosen, self._mailbox)

    def abandon(self, error: JitneyError) -> None:
        """Cancel, and wait no longer for the engine to say so: this error is the end."""
        self.cancel()
        self._mailbox.abandon(error)

    def result(self, timeout: float | None = None) -> Shape:
        """Wait for the end. Raises TimeoutError (the request goes on) or what went wrong."""
        self._mailbox.wait(Awaited.ENDING, timeout)
        return self._result()

    async def result_async(self) -> Shape:
        """`result` for a task of an event loop, which may bound it with `asyncio.timeout`."""
        await self._mailbox.wait_async(Awaited.ENDING)
        return self._result()

    def wait_accepted(self, timeout: float | None = None) -> None:
        """Wait until the scheduler took the request. Raises its refusal, or TimeoutError."""
        self._mailbox.wait(Awaited.ACCEPTED, timeout)
        self._raise_refusal()

    async def wait_accepted_async(self) -> None:
        """`wait_accepted` for a task of an event loop."""
        await self._mailbox.wait_async(Awaited.ACCEPTED)
        self._raise_refusal()

    def __iter__(self) -> Iterator[Delta]:
        """Deltas as they come; raises at the end what went wrong, if something did."""
        while True:
            item = self._mailbox.get()
            if isinstance(item, Ending):
                _raise(item)
                return
            yield item

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Deltas as they come, in an event loop."""
        while True:
            item = await self._mailbox.get_async()
            if isinstance(item, Ending):
                _raise(item)
                return
            yield item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def _result(self) -> Shape:
        ending = self._mailbox.ending
        assert ending is not None, "waited for"
        _raise(ending)
        assert ending.answer is not None, "an ending without an error has an answer"
        return self._shape(ending.answer)

    def _raise_refusal(self) -> None:
        ending = self._mailbox.ending
        if ending is not None and ending.answer is None:
            _raise(ending)


def _raise(ending: Ending) -> None:
    if ending.error is not None:
        raise ending.error
