"""`Batches`: the store, what runs its lines and what moves its batches. Event loop.

The store is opened at the start if its folder is there, and else by the first file: a server that
nobody gives work that may wait leaves nothing on the disk. One that is there and cannot be opened
is tried again, if that may help.

Tests: tests/e2e/batches/test_batches.py and test_restarts.py.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

from prometheus_client.core import Metric

from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError
from jitney.server.batches import limits
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.answer_line import LineAnswerer
from jitney.server.batches.database import DiskError
from jitney.server.batches.runner import LineRunner
from jitney.server.batches.stages import BatchBounds, Stages, Times
from jitney.server.batches.store import StoreThread
from jitney.server.observe.prometheus_families import MetricTable, by, constants, families
from jitney.server.service import now_s

_log = logging.getLogger("jitney.server.batches")


class Batches:
    """All work that may wait, of one folder. `close` comes last, on any thread."""

    def __init__(
        self,
        folder: Path,
        answerer: LineAnswerer,
        *,
        bounds: BatchBounds | None = None,
        times: Times | None = None,
        allowances: Allowances | None = None,
    ) -> None:
        self.thread = StoreThread(folder)
        self._times = times or Times(SystemClock(), now_s)
        self.now = self._times.now
        """Gives seconds since 1970."""
        self.bounds = bounds or BatchBounds()
        self._answerer = answerer
        self.allowances = allowances or Allowances((), SystemClock())
        self._opening = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self.is_waiting = False
        """Whether a store that is not open will be: the disk is in trouble, or another server has
        the store and leaves."""
        self.beside: list[Callable[[], Coroutine[None, None, None]]] = []
        """Other work of the store, which runs as long as lines do."""
        self.runner, self.stages = self._runner_and_stages()

    def open_if_there(self) -> None:
        """Before the event loop: open the store if its folder is there. Raises ConfigError."""
        if self.thread.folder.exists():
            self.thread.open()

    def start(self) -> None:
        """On the event loop: go on with what is in the store, as soon as it is open."""
        if self.thread.is_open and self._running is None:
            self._running = asyncio.create_task(self._run())
        elif self.is_waiting and self._waiting is None:
            self._waiting = asyncio.create_task(self._wait_for_store())

    async def open(self) -> None:
        """Open the store, if it is not open, and start. Raises ConfigError and DiskError."""
        async with self._opening:
            if not self.thread.is_open:
                await asyncio.to_thread(self.thread.open)
        self.start()

    async def is_there(self) -> bool:
        """Whether there is a store, open or not."""
        try:
            return self.thread.is_open or await asyncio.to_thread(self.thread.folder.exists)
        except OSError:
            # Nobody may look.
            return True

    async def stop(self) -> None:
        """Run nothing more. What has no result stays pending."""
        tasks = [task for task in (self._waiting, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting = self._running = None

    def close(self) -> None:
        """Close the store. To be called when the event loop has ended, or after `stop`."""
        self.thread.close()

    def collect(self) -> Iterator[Metric]:
        """All metrics of files and batches. Any thread; numbers only.

        They are those of the last look at the store, a second ago at most: the store itself belongs
        to its thread.
        """
        bounds = constants(limits)
        if self.bounds.bytes_max is not None:
            bounds["disk_bytes_max"] = self.bounds.bytes_max
        runner, stages = self.runner, self.stages
        gauges: MetricTable = {
            "jobs_batches": ("Batches by state.", by("status", dict(stages.counts))),
            "jobs_lines_pending": ("Lines without a result.", stages.pending_count),
            "jobs_lines_in_flight": ("Lines that are being asked.", runner.in_flight_count),
            "jobs_keys_used_up": (
                "Keys whose batches wait, because their tokens of a day are used up.",
                self.allowances.used_up_count,
            ),
            "jobs_limit": ("Every bound of files and batches.", by("limit", bounds)),
        }
        results = by("result", {"done": runner.done_count, "failed": runner.failed_count})
        yield from families("gauge", gauges)
        yield from families("counter", {"jobs_lines": ("Lines with a result.", results)})

    def _runner_and_stages(self) -> tuple[LineRunner, Stages]:
        runner = LineRunner(self.thread, self._answerer, self.allowances)
        parts = (self.thread, self._answerer, runner)
        return runner, Stages(*parts, times=self._times, bounds=self.bounds)

    async def _wait_for_store(self) -> None:
        while not self.thread.is_open:
            await asyncio.sleep(limits.STORE_S)
            with contextlib.suppress(ConfigError, DiskError, OSError):
                if await self.is_there():
                    await self.open()

    async def _run(self) -> None:
        """Run until the task is cancelled. After a fault of ours, begin again from the store."""
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.runner.run())
                    tasks.create_task(self.stages.run())
                    for run in self.beside:
                        tasks.create_task(run())
            except* Exception as error:
                _log.error("The jobs failed, and begin again", exc_info=error)
            await asyncio.sleep(limits.TROUBLE_S)
            before = self.runner
            self.runner, self.stages = self._runner_and_stages()
            self.runner.done_count = before.done_count
            self.runner.failed_count = before.failed_count
