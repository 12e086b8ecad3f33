"""Runs simulations on all cores, in processes. None of them is left behind, whatever happens.

A worker ignores Ctrl-C, because a terminal sends it to every process: the parent ends its workers.
If the parent is killed, the system ends them.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import TypeVar

from jitney.config.machine import keep_children_off_current_folder
from jitney.errors import SetupError
from jitney.sandbox.die_with_parent import die_with_parent
from jitney.sandbox.interrupts import interrupts_held

_PROCESSES = get_context("spawn")
"""A fork would copy the threads' locks, and whatever a model holds."""

CaseT = TypeVar("CaseT")
ResultT = TypeVar("ResultT")

Progress = Callable[[int, int], None]
"""Gets how many simulations are done, and of how many."""


class Pool(AbstractContextManager["Pool"]):
    """Processes that start when they are first needed; none for a single core."""

    def __init__(self, cores: int, progress: Progress = lambda done, count: None) -> None:
        self._cores = cores
        self._progress = progress
        self._executor: ProcessPoolExecutor | None = None
        self._others: frozenset[BaseProcess] = frozenset()
        """Children of this process that are not ours."""
        self._may_begin = _PROCESSES.Event()
        """Set once all workers were started: the executor cannot start one while another dies."""
        self._done = 0
        self._count = 0

    def map(self, run: Callable[[CaseT], ResultT], cases: Sequence[CaseT]) -> list[ResultT]:
        """The results of all cases, in their order. `run` is a function of a module.

        Raises SetupError if the system ends a worker.
        """
        self._count += len(cases)
        self._progress(self._done, self._count)
        if self._cores == 1 or len(cases) <= 1:
            return [self._noted(run(case)) for case in cases]
        executor = self._executor or self._open()
        try:
            with interrupts_held(), _sigint_blocked():
                # Processes start in here.
                futures: list[Future[ResultT]] = [executor.submit(run, case) for case in cases]
            self._may_begin.set()
            return [self._noted(each.result()) for each in futures]
        except BrokenProcessPool:
            raise SetupError(
                "A process that simulates was ended from outside, most likely because memory ran "
                "short; end other programs, or plan with a shorter trace."
            ) from None

    def _open(self) -> ProcessPoolExecutor:
        keep_children_off_current_folder()
        self._others = frozenset(active_children())
        self._executor = ProcessPoolExecutor(
            self._cores,
            mp_context=_PROCESSES,
            initializer=_begin,
            initargs=(os.getpid(), self._may_begin),
        )
        return self._executor

    def __exit__(self, *ended: object) -> None:
        if self._executor is None:
            return
        if any(ended):
            self._kill_workers()
        try:
            self._executor.shutdown(wait=True, cancel_futures=True)
        except BaseException:
            # Ctrl-C while it waited for a worker.
            self._kill_workers()
            raise

    def _kill_workers(self) -> None:
        """End the workers at once; they have nothing to save. The executor waits for their end."""
        for each in active_children():
            if each not in self._others:
                each.kill()
        # A thread of the executor may be writing a case into their pipe, which nobody reads any
        # more. Before this version Python did not close our end, so the thread would never end.
        # Since then it does: both of us would close a number that may be another file's by then.
        if sys.version_info < (3, 11, 5) and (
            calls := getattr(self._executor, "_call_queue", None)
        ):
            calls._reader.close()

    def _noted(self, found: ResultT) -> ResultT:
        self._done += 1
        self._progress(self._done, self._count)
        return found


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """A process that starts in here has Ctrl-C blocked from its first moment.

    This process still gets it: the system gives it to another thread, and Python raises it here.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int, may_begin: Event) -> None:
    """The first thing that a worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not die_with_parent(parent):
        os._exit(1)
    may_begin.wait()
