"""`Jobs`: the store, what runs its lines and what moves its batches. Event loop.

The store is opened at the start if its folder is there, and else by the first file: a server that
nobody gives work that may wait leaves nothing on the disk. One that is there and cannot be opened
is asked for again, if that may help.

Tests: tests/e2e/batches/test_batches.py and test_restarts.py.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError
from jitney.server.batches import limits
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.batch_input import HeldInput
from jitney.server.batches.database import DiskTrouble
from jitney.server.batches.line_asker import Asker
from jitney.server.batches.runner import LineRunner
from jitney.server.batches.stages import JobBounds, Stages, Times
from jitney.server.batches.store import JobStore
from jitney.server.batches.store_thread import StoreThread
from jitney.server.service import now_s

Made = TypeVar("Made")

_log = logging.getLogger("jitney.server.batches")


class Jobs:
    """All work that may wait, of one folder. `close` comes last, on any thread.

    `held` are inputs that stay where they are, by the ids of their files.
    """

    def __init__(
        self,
        folder: Path,
        asker: Asker,
        *,
        bounds: JobBounds | None = None,
        times: Times | None = None,
        held: Mapping[str, HeldInput] | None = None,
        allowances: Allowances | None = None,
    ) -> None:
        self.thread = StoreThread(folder, held)
        self._times = times or Times(SystemClock(), now_s)
        self.bounds = bounds or JobBounds()
        self._asker = asker
        self.allowances = allowances or Allowances((), SystemClock())
        self._opening = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self.is_waiting = False
        """Whether a store that is not open will be: the disk is in trouble, or another server has
        the store and leaves."""
        self.runner, self.stages = self._made()
        self._counted = [0, 0]
        """Lines done and failed by earlier runners."""

    def now(self) -> int:
        """Seconds since 1970."""
        return self._times.now()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is answered here."""
        return self.runner.is_over

    @property
    def done_count(self) -> int:
        """Lines that were answered since the start."""
        return self._counted[0] + self.runner.done_count

    @property
    def failed_count(self) -> int:
        """Lines that failed since the start."""
        return self._counted[1] + self.runner.failed_count

    def open_if_there(self) -> None:
        """Before the event loop: open the store if its folder is there. Raises ConfigError."""
        if self.thread.folder.exists():
            self.thread.open()

    def start(self) -> None:
        """On the event loop: go on with what is in the store, as soon as it is open."""
        if self.thread.is_open and self._running is None:
            self._running = asyncio.create_task(self._run())
        elif self.is_waiting and self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_store())

    async def open(self) -> None:
        """Open the store, if it is not open, and start. Raises ConfigError and DiskTrouble."""
        async with self._opening:
            if not self.thread.is_open:
                await asyncio.to_thread(self.thread.open)
        self.start()

    async def is_there(self) -> bool:
        """Whether there is a store, open or not."""
        return self.thread.is_open or await asyncio.to_thread(_is_there, self.thread.folder)

    async def call(self, use: Callable[[JobStore], Made]) -> Made:
        """What `use` makes of the store. Raises DiskTrouble."""
        return await self.thread.call(use)

    def wake(self) -> None:
        """A batch was made or cancelled: look at it soon."""
        self.stages.wake()

    async def stop(self) -> None:
        """Run nothing more. What has no result stays pending."""
        tasks = [task for task in (self._asking, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._asking = self._running = None

    def close(self) -> None:
        """Close the store. To be called when the event loop has ended, or after `stop`."""
        self.thread.close()

    def _made(self) -> tuple[LineRunner, Stages]:
        runner = LineRunner(self.thread, self._asker, self.allowances)
        stages = Stages(self.thread, self._asker, runner, times=self._times, bounds=self.bounds)
        return runner, stages

    async def _ask_for_store(self) -> None:
        while not self.thread.is_open:
            await asyncio.sleep(limits.STORE_S)
            with contextlib.suppress(ConfigError, DiskTrouble, OSError):
                if await self.is_there():
                    await self.open()

    async def _run(self) -> None:
        """Run until the task is cancelled. After a fault of ours, begin again from the store."""
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.runner.run())
                    tasks.create_task(self.stages.run())
            except* Exception as error:
                _log.error("The jobs failed, and begin again", exc_info=error)
            await asyncio.sleep(limits.TROUBLE_S)
            self._counted[0] += self.runner.done_count
            self._counted[1] += self.runner.failed_count
            self.runner, self.stages = self._made()


def _is_there(folder: Path) -> bool:
    try:
        return folder.exists()
    except OSError:
        # Nobody may look.
        return True
