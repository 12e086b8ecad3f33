"""`Mailbox`: passes the deltas and the ending of one request to one reader.

The engine thread puts; one reader gets, in a thread or in an event loop. A slow reader costs only
the memory of its own text: what is unread of a completion becomes one delta when it is read. The
engine never waits here. No other file of the engine uses asyncio.

Most completions are tracks (`jitney.engine.track`): a mailbox follows them, and the engine wakes
the reader only if it waits (`is_awaited`). The reader says first that it waits and then looks for
news; the engine adds first and then looks who waits; so no news is missed. What is no track is
added in parts.

That does not make logprobs smaller. So a mailbox may be bounded, for readers that should read
all the time. If such a reader stops, the tick ends the request. A reader that reads late on purpose
has a mailbox without a bound.

A reader that does not want to wait can set a listener (`listen`), and fetches when it is called;
`read` takes all news and sets the listener again in one step.

    sent -> accepted -> ended          or, refused:   sent -> ended

`ended` comes exactly once, and after it nothing (invariants 1 and 5).
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from enum import Enum

from jitney.core import limits
from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.engine.answer import Delta, Ending
from jitney.engine.track import Track
from jitney.errors import JitneyError

TEXTS_MAX = 64
"""Unread pieces of text of one completion before they are joined. Each takes ten times the memory
of its characters."""

UNREAD_TOKEN_BYTES = 108
"""What one unread token counts for: itself, its text, and the delta that they are in."""


class Awaited(Enum):
    """What a reader waits for, and the words for its absence. The ending satisfies each of them."""

    ACCEPTED = "was not accepted"
    DELTA = "made no text"
    ENDING = "did not end"


class _Unread:
    """What is unread of one completion, in parts that a delta is made of when it is fetched."""

    __slots__ = ("finish_reason", "logprobs", "since", "size", "stop_reason", "texts", "tokens")

    def __init__(
        self, since: float, text: str, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]
    ) -> None:
        self.since = since
        self.size = 0
        """Estimated bytes; counted only if the mailbox is bounded."""
        self.texts = [text]
        self.tokens = list(tokens)
        self.logprobs = list(logprobs)
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    def delta(self, index: int) -> Delta:
        """All of it as one delta."""
        text = "".join(self.texts)
        parts = tuple(self.tokens), tuple(self.logprobs)
        return Delta(index, text, *parts, self.finish_reason, self.stop_reason)


class Mailbox:
    """Between the engine thread and one reader. With `streams=False` it keeps only the ending."""

    def __init__(self, *, streams: bool = True, is_bounded: bool = False) -> None:
        self._lock = threading.Lock()
        self.streams = streams
        self.is_bounded = is_bounded
        self._size = 0
        self.is_large = False
        """Whether too much was unread when the last part was added."""
        self._accepted = False
        self._abandoned = False
        self._unread: dict[int, _Unread] = {}
        self._tracks: tuple[Track, ...] = ()
        self.is_awaited = False
        """Whether somebody may have to be woken for a delta."""
        self._ending: Ending | None = None
        self._awaited: Awaited | None = None
        self._waker: Callable[[], None] | None = None
        """Wakes the reader that waits, once what it awaits is there."""
        self._listener: Callable[[], None] | None = None
        self._has_listener = False

    @property
    def ending(self) -> Ending | None:
        """The ending; None before the end."""
        return self._ending

    def accept(self) -> None:
        """The scheduler accepted the request. It will end exactly once."""
        with self._lock:
            assert not self._accepted, "accepted twice"
            self._accepted = True
            self._wake()

    def follow(self, tracks: tuple[Track, ...]) -> None:
        """Give these completions to the reader. Engine thread, before there is news of them."""
        with self._lock:
            if self.streams and not self._abandoned:
                self._tracks = tracks

    def wake(self) -> None:
        """Wake the reader if it waits: a track has news. Engine thread."""
        if self.is_awaited:
            with self._lock:
                if self._listener is not None:
                    self._tell()
                if self._awaited is not None:
                    self._wake()

    def put(self, delta: Delta, at: float = 0.0) -> None:
        """Add a delta that was made elsewhere. Never waits."""
        end = None
        if delta.finish_reason is not None:
            end = delta.finish_reason, delta.stop_reason
        self.add(delta.index, delta.text, delta.tokens, delta.logprobs, at, end)

    def add(
        self,
        index: int,
        text: str,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        at: float,
        end: tuple[FinishReason, str | int | None] | None = None,
    ) -> None:
        """Add the parts of a delta for the reader; `end` is why it ended, and the stop that ended
        it. Engine thread; never waits."""
        if not self.streams:
            return
        with self._lock:
            if self._abandoned:
                return
            assert self._ending is None, "a delta after the ending"
            unread = self._unread.get(index)
            if unread is None:
                unread = self._unread[index] = _Unread(at, text, tokens, logprobs)
            else:
                assert unread.finish_reason is None, f"a delta after the end of completion {index}"
                unread.texts.append(text)
                unread.tokens += tokens
                unread.logprobs += logprobs
            if end is not None:
                unread.finish_reason, unread.stop_reason = end
            if len(unread.texts) == TEXTS_MAX:
                unread.texts = ["".join(unread.texts)]
            if self.is_bounded:
                size = 64 + len(text) + 40 * len(tokens) + (_size(logprobs) if logprobs else 0)
                unread.size += size
                self._size += size
                self.is_large = self._size > limits.UNREAD_BYTES_MAX
            if self.is_awaited:
                self._wake()

    def is_read_too_slowly(self, now: float) -> bool:
        """Whether too much is unread, and for too long. Engine thread."""
        with self._lock:
            # In order of age: a completion that was fetched is added again at the end.
            oldest = next(iter(self._unread.values()), None)
            size, moments = self._size, [] if oldest is None else [oldest.since]
            for track in self._tracks:
                if track.unread_count:
                    size += track.unread_count * UNREAD_TOKEN_BYTES
                    moments.append(track.unread_since)
            if size <= limits.UNREAD_BYTES_MAX:
                return False
            return bool(moments) and now - min(moments) > limits.UNREAD_S_MAX

    def end(self, ending: Ending) -> None:
        """Add the ending. Engine thread; never waits."""
        with self._lock:
            if self._abandoned:
                return
            assert self._ending is None, "a second ending"
            self._ending = ending
            self._wake()

    def abandon(self, error: JitneyError) -> None:
        """Any thread: end with this error, because the engine thread is stuck in native code."""
        with self._lock:
            if self._ending is not None:
                return
            self._abandoned = True
            self._ending = Ending(None, error)
            self._wake()

    def wait(self, awaited: Awaited, timeout: float | None = None) -> None:
        """Block this thread until it is there. Raises TimeoutError.

        The thread sleeps on a lock of its own. An interrupt may end that sleep at any moment; one
        that ends the wait for a condition may leave its lock open, and the next exit breaks.
        """
        asleep = threading.Lock()
        asleep.acquire()
        wake = asleep.release
        try:
            limit_s = -1 if timeout is None else max(0, timeout)
            is_late = self._begin_wait(awaited, wake) and not asleep.acquire(timeout=limit_s)
            if is_late and not self._is_ready(awaited):
                raise TimeoutError(f"The request {awaited.value} within {timeout:g} s")
        finally:
            self._end_wait(wake)

    async def wait_async(self, awaited: Awaited) -> None:
        """The same for a task of an event loop. The task may use `asyncio.timeout`."""
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            # A closed loop has no reader any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake_sleeper, sleeper)

        try:
            if self._begin_wait(awaited, wake):
                await sleeper
        finally:
            self._end_wait(wake)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when there is something to fetch; at once if there is already.

        It is called on the thread that puts, mostly the engine thread. So it must be quick and must
        not use this mailbox. From now on deltas are for `fetch` only.
        """
        with self._lock:
            self._has_listener, self.is_awaited = True, self.streams
            self._listener = listener
            self._call_listener()

    def fetch(self) -> Delta | Ending | None:
        """All unread deltas of one completion as one; then the ending, at every call.

        None if nothing is new.
        """
        ending = self._ending  # first: nothing is added after it
        for track in self._tracks:
            while track.has_news:
                delta = track.take()
                if delta is not None:
                    return delta
        if self._unread:
            return self._take_unread()
        if ending is not None:
            self._tracks = ()  # a stuck engine that comes back may still add to them
        return ending

    def read(self, listener: Callable[[], None]) -> list[Delta | Ending]:
        """Fetch everything, at most one delta of each track; without the ending, `listen`."""
        ending = self._ending
        news: list[Delta | Ending] = [
            delta for track in self._tracks if (delta := track.take()) is not None
        ]
        while self._unread:
            news.append(self._take_unread())
        if ending is not None and not self._has_deltas:
            news.append(ending)
            self._tracks = ()
        else:
            self.listen(listener)
        return news

    def get(self, timeout: float | None = None) -> Delta | Ending:
        """Wait for a delta or the ending, in this thread. Raises TimeoutError when there was no
        token for so long."""
        self._refuse_second_reader()
        item = None
        while item is None:  # half a character is news, and no delta
            self.wait(Awaited.DELTA, timeout)
            item = self.fetch()
        return item

    async def get_async(self) -> Delta | Ending:
        """Wait for a delta or the ending, in this task."""
        self._refuse_second_reader()
        item = None
        while item is None:
            await self.wait_async(Awaited.DELTA)
            item = self.fetch()
        return item

    def deltas(self) -> Iterator[Delta]:
        """Deltas as they come, in this thread. At the end raises the request's error, if any."""
        while isinstance(item := self.get(), Delta):
            yield item
        item.raise_error()

    async def deltas_async(self) -> AsyncIterator[Delta]:
        """Deltas as they come, in this task."""
        while isinstance(item := await self.get_async(), Delta):
            yield item
        item.raise_error()

    def _take_unread(self) -> Delta:
        with self._lock:
            index = next(iter(self._unread))
            unread = self._unread.pop(index)
            self._size -= unread.size
            return unread.delta(index)

    def _begin_wait(self, awaited: Awaited, waker: Callable[[], None]) -> bool:
        """Have the reader woken when it is there; false if it is there already."""
        with self._lock:
            self.is_awaited = self.streams
            if self._is_ready(awaited):
                self._note_awaited()
                return False
            if self._waker is not None:
                raise RuntimeError("Two readers wait on one handle; a request has a single reader.")
            self._awaited, self._waker = awaited, waker
            self._note_awaited()
            return True

    def _end_wait(self, waker: Callable[[], None]) -> None:
        """This reader waits no more."""
        with self._lock:
            if self._waker is waker:
                self._awaited = self._waker = None
                self._note_awaited()

    def _refuse_second_reader(self) -> None:
        if self._has_listener:
            raise RuntimeError(
                "The deltas of this request go to its callbacks; ask the handle for its result."
            )

    def _is_ready(self, awaited: Awaited) -> bool:
        if self._ending is not None:
            return True
        if awaited is Awaited.ACCEPTED:
            return self._accepted
        return awaited is Awaited.DELTA and self._has_deltas

    @property
    def _has_deltas(self) -> bool:
        return bool(self._unread) or any(track.has_news for track in self._tracks)

    def _note_awaited(self) -> None:
        is_awaited = self._listener is not None or self._awaited is Awaited.DELTA
        self.is_awaited = is_awaited and self.streams

    def _call_listener(self) -> None:
        if self._listener is not None and (self._ending is not None or self._has_deltas):
            self._tell()

    def _tell(self) -> None:
        listener, self._listener = self._listener, None
        self._note_awaited()
        if listener is not None:
            listener()

    def _wake(self) -> None:
        if self._listener is not None:
            self._call_listener()
        # A reader that waits for the ending is not woken for every token: waking is expensive.
        if self._awaited is not None and self._is_ready(self._awaited):
            assert self._waker is not None, "somebody waits"
            waker, self._waker, self._awaited = self._waker, None, None
            self._note_awaited()
            waker()


def _size(logprobs: Sequence[TokenLogprob]) -> int:
    """Estimated bytes of logprobs: Python's numbers and pairs are large."""
    return sum([104 + 120 * len(each.top) for each in logprobs])


def _wake_sleeper(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)
