"""Runs simulations on all cores, each in a process of its own.

Tests: tests/unit/plan/test_recommend.py and tests/e2e/test_plan.py.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing import get_context
from types import TracebackType
from typing import TypeVar

from jitney.config.machine import keep_children_off_current_folder

Case = TypeVar("Case")
Found = TypeVar("Found")

Progress = Callable[[int, int], None]
"""Is told how many simulations are done, and of how many."""


class Pool(AbstractContextManager["Pool"]):
    """Processes that start when they are first needed; none for a single core."""

    def __init__(self, cores: int, progress: Progress = lambda done, count: None) -> None:
        self._cores = cores
        self._progress = progress
        self._executor: ProcessPoolExecutor | None = None
        self._done = 0
        self._count = 0

    def map(self, run: Callable[[Case], Found], cases: Sequence[Case]) -> list[Found]:
        """The results of all cases, in their order. `run` is a function of a module."""
        self._count += len(cases)
        self._progress(self._done, self._count)
        if self._cores == 1 or len(cases) == 1:
            return [self._noted(run(case)) for case in cases]
        if self._executor is None:
            keep_children_off_current_folder()
            # A fork would copy the threads' locks, and whatever a model holds.
            context = get_context("spawn")
            self._executor = ProcessPoolExecutor(self._cores, mp_context=context)
        futures: list[Future[Found]] = [self._executor.submit(run, case) for case in cases]
        return [self._noted(each.result()) for each in futures]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=error is None, cancel_futures=True)

    def _noted(self, found: Found) -> Found:
        self._done += 1
        self._progress(self._done, self._count)
        return found
