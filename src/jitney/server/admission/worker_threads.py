"""Slow work for callers, such as tokenising, in a few threads: `WorkerThreads`. Event loop.

`FairQueue` decides whose work is next. A caller is a key; without keys all callers are one. Each
caller has one line for small work and one for large work. The lines take turns, and each line is
served in the order of arrival. If the caller leaves before the turn of its work, the work never
begins. Work that has begun can read `Call.is_wanted`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jitney.errors import Draining, NoRoom
from jitney.server import limits

WorkT = TypeVar("WorkT")
ResultT = TypeVar("ResultT")
Line = tuple[str, bool]
"""A caller, and whether its large work waits here."""


class FairQueue(Generic[WorkT]):
    """Work that waits, and how much of each line is being done."""

    def __init__(self, threads: int, share: int) -> None:
        assert 1 <= share <= threads, (share, threads)
        self._threads = threads
        self._share = share
        self._large_max = max(threads - 1, 1)
        self._large_share = 1 if share < threads else self._large_max
        # In the order of their turns: a line that had its turn goes to the end.
        self._waiting: dict[Line, deque[WorkT]] = {}
        self._begun: dict[Line, int] = {}

    @property
    def waiting(self) -> list[WorkT]:
        """Work that has not begun."""
        return [each for line in self._waiting.values() for each in line]

    def add(self, line: Line, work: WorkT) -> None:
        """Put work at the end of its line."""
        self._waiting.setdefault(line, deque()).append(work)

    def remove(self, line: Line, work: WorkT) -> None:
        """Take work out of its line, unless it has begun."""
        if work in self._waiting.get(line, ()):
            self._waiting[line].remove(work)
            self._tidy(line)

    def begin(self) -> WorkT | None:
        """Begin the next piece of work; None when no thread is free for any."""
        if sum(self._begun.values()) >= self._threads:
            return None
        for line, waiting in self._waiting.items():
            if self._may_begin(line):
                work = waiting.popleft()
                self._begun[line] = self._begun.get(line, 0) + 1
                self._waiting[line] = self._waiting.pop(line)
                self._tidy(line)
                return work
        return None

    def end(self, line: Line) -> None:
        """One piece of the line's work is done."""
        assert self._begun[line] > 0, line
        self._begun[line] -= 1
        if not self._begun[line]:
            del self._begun[line]

    def _may_begin(self, line: Line) -> bool:
        caller, is_large = line
        its_own = sum(self._begun.get((caller, each), 0) for each in (False, True))
        large = sum(count for (_, each), count in self._begun.items() if each)
        is_full = large >= self._large_max or self._begun.get(line, 0) >= self._large_share
        return its_own < self._share and not (is_large and is_full)

    def _tidy(self, line: Line) -> None:
        if not self._waiting[line]:
            del self._waiting[line]


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Something to make, and the future of its caller."""

    line: Line
    make: Any  # Any: a function without arguments, or what the function of all needs
    result: "asyncio.Future[Any]"

    def fail(self, error: BaseException) -> None:
        """The caller gets this error, if it still waits."""
        if not self.result.done():
            self.result.set_exception(error)


class WorkerThreads:
    """Threads that callers share. Made before the event loop, used on it.

    With `rests`, a thread pauses after each piece of work for as long as that took. That is for
    work in which no other thread runs: each of them needs several turns to send one token.
    """

    def __init__(
        self, count: int = limits.WORKER_THREADS, *, has_several_callers: bool, rests: bool = False
    ) -> None:
        # With several callers, one of them never has all threads.
        share = max(count - 1, 1) if has_several_callers else count
        self._queue: FairQueue[_Work] = FairQueue(count, share)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="jitney-worker")
        self._rests = rests
        self._is_closed = False

    def submit(self, line: Line, make: Callable[[], ResultT]) -> "asyncio.Future[ResultT]":
        """Put work into the queue. Cancel the future before its turn, and it never begins."""
        work = _Work(line, make, asyncio.get_running_loop().create_future())
        self._queue.add(line, work)
        work.result.add_done_callback(lambda _: self._forget_cancelled(work))
        self._begin()
        return work.result

    def close(self) -> None:
        """Begin nothing more. Those who wait get the error Draining."""
        self._is_closed = True
        for work in self._queue.waiting:
            work.fail(_shut_down())
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _forget_cancelled(self, work: _Work) -> None:
        # Work that was done has left its line: only a cancel is worth a search.
        if work.result.cancelled():
            self._queue.remove(work.line, work)

    def _begin(self) -> None:
        while (work := self._queue.begin()) is not None:
            # Cancelled work may still be in the queue.
            if work.result.done() or not self._start(work):
                self._queue.end(work.line)

    def _start(self, work: _Work) -> bool:
        loop = work.result.get_loop()
        begun_at = loop.time()

        def done(making: "Future[Any]") -> None:
            # On the worker thread. After the end of the loop nothing is next.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, work, making, begun_at)

        try:
            self._threads.submit(work.make).add_done_callback(done)
        except RuntimeError:
            no_thread = NoRoom("The system gave no thread for it.")
            work.fail(_shut_down() if self._is_closed else no_thread)
            return False
        return True

    def _end(self, work: _Work, making: "Future[Any]", begun_at: float) -> None:
        error = _shut_down() if making.cancelled() else making.exception()
        if error is not None:
            work.fail(error)
        elif not work.result.done():
            work.result.set_result(making.result())
        if self._rests:
            loop = work.result.get_loop()
            loop.call_later(loop.time() - begun_at, self._go_on, work.line)
        else:
            self._go_on(work.line)

    def _go_on(self, line: Line) -> None:
        self._queue.end(line)
        self._begin()


class NotShared(Exception):
    """Work has to be done alone: it could not be done together with that of others."""


class SharedWork(Generic[WorkT]):
    """Short work of many callers, which one thread does together. Made before the event loop, used
    on it.

    `do` gives the result of each, or its error. What comes meanwhile waits for the next time. If
    `do` raises, everybody gets NotShared, and so does who comes soon after.
    """

    def __init__(self, do: Callable[[list[WorkT]], list[Any]]) -> None:
        self._do = do
        self._queue: FairQueue[_Work] = FairQueue(
            limits.WORKS_TOGETHER_MAX, limits.WORKS_TOGETHER_MAX
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jitney-shared")
        self._is_busy = self._is_closed = False
        self._apart_until = 0.0

    def submit(self, line: Line, work: WorkT) -> "asyncio.Future[Any]":
        """Put work into the queue. Cancel the future before its turn, and it never begins."""
        loop = asyncio.get_running_loop()
        waiting = _Work(line, work, loop.create_future())
        if loop.time() < self._apart_until:
            waiting.fail(NotShared())
            return waiting.result
        self._queue.add(line, waiting)
        if not self._is_busy:
            self._is_busy = True
            # Others may come in this round of the event loop.
            loop.call_soon(self._begin)
        return waiting.result

    def close(self) -> None:
        """Begin nothing more. Those who wait get the error Draining."""
        self._is_closed = True
        for work in self._queue.waiting:
            work.fail(_shut_down())
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        begun = list(iter(self._queue.begin, None))
        self._is_busy = bool(begun)
        if not begun:
            return
        wanted = [each for each in begun if not each.result.done()]
        loop = asyncio.get_running_loop()

        def done(doing: "Future[list[Any]]") -> None:
            # On the thread. After the end of the loop nothing is next.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, begun, wanted, doing)

        try:
            doing = self._thread.submit(self._do, [each.make for each in wanted])
        except RuntimeError as error:
            # It is closed, or the system gave no thread.
            doing = Future()
            doing.set_exception(error)
        doing.add_done_callback(done)

    def _end(self, begun: list[_Work], wanted: list[_Work], doing: "Future[list[Any]]") -> None:
        if doing.cancelled() or self._is_closed:
            results: list[Any] = [_shut_down()] * len(wanted)
        elif doing.exception() is not None:
            self._apart_until = asyncio.get_running_loop().time() + limits.APART_S
            results = [NotShared()] * len(wanted)
        else:
            results = doing.result()
        for work, result in zip(wanted, results, strict=True):
            if isinstance(result, Exception):
                work.fail(result)
            elif not work.result.done():
                work.result.set_result(result)
        for work in begun:
            self._queue.end(work.line)
        self._begin()


def _shut_down() -> Draining:
    return Draining("The server was shut down.")
