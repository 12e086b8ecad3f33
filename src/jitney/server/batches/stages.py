"""Moves batches from state to state: checks inputs, ends batches, writes outputs. Event loop.

It looks at all live batches in turn and does one piece of work for each, so that a long input does
not keep a short one waiting. Outputs are written beside that, a few at once. It remembers nothing
that matters: each look begins with what the store says, and a restart goes on from there.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from jitney.engine.clock import Clock
from jitney.server.batches import limits
from jitney.server.batches.answer_line import LineAnswerer
from jitney.server.batches.content_files import OutputFiles
from jitney.server.batches.database import DiskError
from jitney.server.batches.lines import LineCheck
from jitney.server.batches.rows import BatchStatus, StoredBatch
from jitney.server.batches.runner import LineRunner
from jitney.server.batches.store import BatchStore, StoreThread, until_disk_works

_log = logging.getLogger("jitney.server.batches")


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """The most lines of a batch, and the most bytes of the disk. None is no bound."""

    lines_max: int | None = limits.LINES_MAX
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Where the time comes from: seconds that only grow, and seconds since 1970."""

    clock: Clock
    now: Callable[[], int]


class Stages:
    """All batches on their way."""

    def __init__(
        self,
        thread: StoreThread,
        answerer: LineAnswerer,
        runner: LineRunner,
        *,
        times: Times,
        bounds: BatchBounds,
    ) -> None:
        self._thread = thread
        self._answerer = answerer
        self._runner = runner
        self._clock = times.clock
        self._now = times.now
        self._bounds = bounds
        self._unserved: set[int] = set()
        self._writing: set[int] = set()
        """Batches whose output is being written, or was since the last look."""
        self._writers = asyncio.Semaphore(limits.WRITERS_MAX)
        self._aged_at = self._clock.now()
        """Until when the time of batches was counted."""
        self._measure_at = 0.0
        """When sizes and counts are measured next: they take longer than a look."""
        self.counts: dict[str, int] = {}
        """How many batches are in each state."""
        self.pending_count = 0
        """Lines of live batches that have no result."""

    def wake(self) -> None:
        """A batch was made or cancelled: look at it soon."""
        self._runner.settled.set()

    async def run(self) -> None:
        """Move batches. It ends with its task."""
        # Until now the store may have been another's.
        self._aged_at = self._clock.now()
        async with asyncio.TaskGroup() as tasks:
            while True:
                started_at = self._clock.now()
                self._runner.settled.clear()
                look = partial(self._look, tasks)
                if await until_disk_works(look, "The batches wait for the disk"):
                    # As long as it took: live calls need the interpreter, too.
                    took_s = self._clock.now() - started_at
                    await asyncio.sleep(min(took_s, limits.TURN_S_MAX))
                else:
                    await asyncio.sleep(limits.TURN_S_MIN)
                    await self._wait()

    async def _wait(self) -> None:
        # Not `wait_for`, which may lose a cancel on Python 3.11.
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.TURN_S_MAX):
                await self._runner.settled.wait()

    async def _look(self, tasks: asyncio.TaskGroup) -> bool:
        """Do one piece of work for each batch; whether there is more to do at once."""
        await self._age()
        batches = await self._thread.call(lambda store: store.batches.live())
        self.pending_count = sum(each.total - each.completed - each.failed for each in batches)
        # Not when it is written: this look may still have it as it was before.
        self._writing.intersection_update(each.serial for each in batches)
        is_busy = False
        for batch in batches:
            is_busy |= await self._step(batch, tasks)
        swept = await self._thread.call(lambda store: store.batches.sweep())
        if 0 < swept < limits.SWEEP_LINES:
            await self._thread.call(lambda store: store.shrink())
        if self._clock.now() >= self._measure_at:
            self._measure_at = self._clock.now() + limits.TURN_S_MAX
            await self._note_size()
            self.counts = await self._thread.call(lambda store: store.batches.counts())
        return is_busy or swept > 0

    async def _age(self) -> None:
        """Count the time that has passed, now and then. A step of the wall clock is no time."""
        passed_s = self._clock.now() - self._aged_at
        if passed_s >= limits.AGE_S:
            await self._thread.call(lambda store: store.batches.age(passed_s))
            self._aged_at += passed_s

    async def _step(self, batch: StoredBatch, tasks: asyncio.TaskGroup) -> bool:
        serial, status = batch.serial, batch.status
        if status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            if serial not in self._writing:
                self._writing.add(serial)
                tasks.create_task(self._write_out(batch))
            return False
        if batch.is_over_time:
            return await self._finalize(serial, BatchStatus.EXPIRED)
        if status is BatchStatus.VALIDATING:
            return await self._check(batch)
        if batch.is_settled:
            return await self._finalize(serial, BatchStatus.COMPLETED)
        if self._answerer.serves(batch.owner, batch.model):
            self._runner.begin(batch)
        elif serial not in self._unserved:
            self._unserved.add(serial)
            _log.warning(
                "%s waits: its key, or the model %s, is not here", batch.id, batch.model_name
            )
        return False

    async def _finalize(self, serial: int, outcome: BatchStatus) -> bool:
        now = self._now()
        await self._thread.call(lambda store: store.batches.finalize(serial, now, outcome))
        return True

    async def _check(self, batch: StoredBatch) -> bool:
        """Check the next lines of an input."""
        try:
            await self._thread.call(partial(self._check_part, batch, self._now()))
        except DiskError as error:
            # Of this batch alone, it may be: the others go on.
            self._runner.note_input_error(batch, error)
            return False
        self._runner.input_errors.pop(batch.serial, None)
        return True

    def _check_part(self, batch: StoredBatch, now: int, store: BatchStore) -> None:
        """On the store's thread: check lines, note them, and move on behind the last."""
        serial, lines_max = batch.serial, self._bounds.lines_max
        check = LineCheck(
            batch.endpoint,
            self._answerer.line_bytes_max,
            self._answerer.values_max,
            partial(store.batches.has_custom_id, serial),
        )
        with store.input_of(batch) as file:
            part = check.check_part(file, batch.read_bytes, batch.read_lines)
        if part.is_last:
            store.check_whole(batch, part.read_bytes)
        store.batches.add_lines(batch, part.lines, part.read_bytes, part.read_lines)
        total = batch.total + len(part.lines)
        if lines_max is not None and total > lines_max:
            message = f"The file has more than {lines_max} lines, which is the limit."
            store.batches.fail(serial, now, "too_many_lines", message)
        elif part.is_last and total == 0:
            message = "The file has no line with a request on it."
            store.batches.fail(serial, now, "empty_file", message)
        elif part.is_last:
            store.batches.begin(serial, now)

    async def _write_out(self, batch: StoredBatch) -> None:
        """Write the output of a batch that takes no more results, and end it, as soon as the disk
        takes it."""
        await self._runner.drop(batch.serial)
        write = partial(self._write, batch)
        files = await until_disk_works(write, f"{batch.id} waits for the disk to be written")
        # From here on the files stay: where this task ends, or the disk fails, the store may know
        # them all the same. If it does not, the next start removes them.
        now = self._now()
        output, errors = files.records(now)
        end = partial(
            self._thread.call, lambda store: store.batches.end(batch, now, output, errors)
        )
        await until_disk_works(end, f"{batch.id} waits for the disk to be ended")
        await asyncio.to_thread(files.name)
        _log.info("%s is %s", batch.id, batch.outcome)
        # Its lines can be removed now.
        self.wake()

    async def _write(self, batch: StoredBatch) -> OutputFiles:
        """The output of a batch, complete and on the disk."""
        serial, after = batch.serial, 0
        async with self._writers:
            files = OutputFiles(self._thread.store.content, batch)
            try:
                while lines := await self._thread.call(
                    lambda store: store.batches.written_lines(serial, after)  # noqa: B023, at once
                ):
                    await asyncio.to_thread(files.add, lines)
                    after = lines[-1].number
                await asyncio.to_thread(files.sync)
            except BaseException:
                await asyncio.to_thread(files.discard)
                raise
        return files

    async def _note_size(self) -> None:
        """Begin no line while the store is as large as it may be."""
        bytes_max = self._bounds.bytes_max
        if bytes_max is None:
            return
        used = await self._thread.call(lambda store: store.used_bytes())
        is_full = used >= bytes_max
        if is_full and not self._runner.is_full:
            _log.warning(
                "The jobs pause: they take %d MiB of the disk, which is their limit; delete files, "
                "or raise --jobs-disk-limit",
                used >> 20,
            )
        self._runner.is_full = is_full
        self._runner.may_fill.set()
