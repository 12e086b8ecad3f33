"""Slow work for callers, such as tokenising, in a few threads: `WorkerThreads`. Event loop.

`jitney.server.admission.fair_queue` decides whose work is next. If the caller leaves before the
turn of its work, the work never begins. Work that has begun can read `Call.is_wanted`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from jitney.errors import NoRoom
from jitney.server import limits
from jitney.server.admission.fair_queue import FairQueue, Line

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Something to make, and the future of its caller."""

    line: Line
    make: Callable[[], Any]  # Any: whatever it makes
    result: "asyncio.Future[Any]"


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

    def submit(self, line: Line, make: Callable[[], Made]) -> "asyncio.Future[Made]":
        """Put work into the queue. Cancel the future before its turn, and it never begins."""
        work = _Work(line, make, asyncio.get_running_loop().create_future())
        self._queue.add(line, work)
        work.result.add_done_callback(lambda _: self._forget_cancelled(work))
        self._begin()
        return work.result

    def close(self) -> None:
        """Begin nothing more, and cancel what waits."""
        self._is_closed = True
        for work in self._queue.waiting:
            work.result.cancel()
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
            if self._is_closed:
                work.result.cancel()
            else:
                work.result.set_exception(NoRoom("The system gave no thread for it."))
            return False
        return True

    def _end(self, work: _Work, making: "Future[Any]", begun_at: float) -> None:
        if not work.result.done():
            if making.cancelled():
                work.result.cancel()
            elif (error := making.exception()) is not None:
                work.result.set_exception(error)
            else:
                work.result.set_result(making.result())
        if self._rests:
            loop = work.result.get_loop()
            loop.call_later(loop.time() - begun_at, self._go_on, work.line)
        else:
            self._go_on(work.line)

    def _go_on(self, line: Line) -> None:
        self._queue.end(line)
        self._begin()
