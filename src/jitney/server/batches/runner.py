"""Runs the lines of batches: `LineRunner`. Event loop.

It takes pending lines from the store, has them answered, at most so many at once, and writes the
results back, as many together as have come. Owners take turns. It remembers nothing that matters:
whatever is lost with the process is pending in the store. A key that has used up its tokens
(`jitney.server.batches.allowances`) has no turn.

While the disk is full or fails, results are kept in memory, no new line is begun, and the write is
tried again. A batch whose input cannot be read pauses, and the others go on. A line that finds no
room waits, and no other begins before it. A line with which backends ended while they read it waits
too, and others go on meanwhile. It is counted as a sequence is that fails (decision 5): here, in
memory, so a restart of the server begins the count again.
"""

import asyncio
import logging
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from jitney.core.limits import FAILURES_MAX, SUSPECT_FAILURES
from jitney.errors import EngineStopped, InputCrashed, QueueFull
from jitney.server.batches import limits
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.answer_line import LineAnswerer, refused
from jitney.server.batches.database import DiskError
from jitney.server.batches.rows import LineResult, StoredBatch, StoredLine
from jitney.server.batches.store import BatchStore, StoreThread, until_disk_works

_log = logging.getLogger("jitney.server.batches")

_PAUSED = "The jobs pause until the disk can be written to"


@dataclass(slots=True, eq=False)
class _Source:
    """The pending lines of one batch, in order. `after` is the last number that was read."""

    batch: StoredBatch
    after: int = 0
    lines: deque[StoredLine] = field(default_factory=deque)
    is_empty: bool = False
    is_paused: bool = False
    """Whether its input could not be read a moment ago."""


class LineRunner:
    """Runs lines until its task is cancelled, or nothing more is answered."""

    def __init__(self, thread: StoreThread, answerer: LineAnswerer, allowances: Allowances) -> None:
        self._thread = thread
        self._answerer = answerer
        self._allowances = allowances
        self._sources: dict[int, _Source] = {}
        self._tasks: dict[asyncio.Task[None], StoredBatch] = {}
        """Lines that are being answered, and their batches."""
        self._held: Counter[str] = Counter()
        """Lines of each owner that wait for room."""
        self._crashed: Counter[str] = Counter()
        """Lines of each owner that wait after a backend ended with them."""
        self._crashed_turn = asyncio.Lock()
        self._results: list[LineResult] = []
        """Results that are not in the store yet."""
        self.input_errors: dict[int, DiskError] = {}
        """Batches whose input cannot be read now, by their serials."""
        self.is_disk_failing = False
        """Whether results could not be written a moment ago: no line is begun then."""
        self.is_full = False
        """Whether the store is as large as it may be: no line is begun then."""
        self.is_over = False
        """Whether nothing more is answered here."""
        self.done_count = self.failed_count = 0
        """Lines whose results were written."""
        self.may_fill = asyncio.Event()
        """Set when there may be room for lines."""
        self._may_keep = asyncio.Event()
        self.settled = asyncio.Event()
        """Set when results were written."""

    @property
    def in_flight_count(self) -> int:
        """Lines that are being answered."""
        return len(self._tasks)

    async def run(self) -> None:
        """Run lines. It ends with its task, and with an error that a line does not expect: the next
        runner finds that line pending."""
        self._allowances.adopt(self._thread.store.batches.used_at_open)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._allowances.tend(self._thread, self.may_fill.set))
            tasks.create_task(self._fill_always(tasks))
            tasks.create_task(self._keep_always())

    def begin(self, batch: StoredBatch) -> None:
        """Run the lines of this batch, too."""
        if batch.serial not in self._sources:
            self._sources[batch.serial] = _Source(batch)
            self.may_fill.set()

    async def drop(self, serial: int) -> None:
        """Run no more lines of this batch. What has no result yet gets none."""
        self._sources.pop(serial, None)
        self.input_errors.pop(serial, None)
        dropped = [task for task, batch in self._tasks.items() if batch.serial == serial]
        for task in dropped:
            task.cancel()
        await asyncio.gather(*dropped, return_exceptions=True)
        self._results = [each for each in self._results if each.batch != serial]

    def note_input_error(self, batch: StoredBatch, error: DiskError) -> None:
        """The input of a batch cannot be read: say so once."""
        if batch.serial not in self.input_errors:
            _log.warning("%s pauses until its input can be read: %s", batch.id, error)
        self.input_errors[batch.serial] = error

    async def _fill_always(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self.may_fill.clear()
            while self._has_room() and (found := await self._next_line()) is not None:
                self._start(tasks, *found)
            await self.may_fill.wait()

    def _has_room(self) -> bool:
        most = self._answerer.in_flight_max
        return (
            # Those that wait after a crash take no place, up to a bound.
            len(self._tasks) - min(self._crashed.total(), most) < most
            and len(self._results) < limits.UNKEPT_MAX
            and not self._held.total()
            and not (self.is_disk_failing or self.is_full or self.is_over)
            and self._answerer.is_open
        )

    async def _next_line(self) -> tuple[_Source, StoredLine] | None:
        """The next line of the owner that has the fewest; its oldest batch first."""
        while True:
            ready = [each for each in self._sources.values() if self._may_begin(each)]
            if not ready:
                return None
            in_flight = Counter(each.owner for each in self._tasks.values())
            source = min(ready, key=lambda each: (in_flight[each.batch.owner], each.batch.serial))
            if not source.lines:
                await self._read_more(source)
            # It may have been dropped meanwhile.
            if source.lines and source.batch.serial in self._sources:
                return source, source.lines.popleft()

    def _may_begin(self, source: _Source) -> bool:
        owner = source.batch.owner
        return (
            bool(source.lines or not source.is_empty)
            and not source.is_paused
            # An owner of many such lines would end the backend for everybody, again and again.
            and self._crashed[owner] < limits.CRASHED_KEY_MAX
            and self._allowances.has_left(owner)
        )

    async def _read_more(self, source: _Source) -> None:
        serial, after = source.batch.serial, source.after
        read = partial(
            self._thread.call,
            lambda store: store.batches.pending_lines(serial, after, limits.PENDING_LINES),
        )
        lines = await until_disk_works(read, _PAUSED)
        source.lines.extend(lines)
        source.is_empty = not lines
        if lines:
            source.after = lines[-1].number

    def _start(self, tasks: asyncio.TaskGroup, source: _Source, line: StoredLine) -> None:
        def end(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            self.may_fill.set()

        task = tasks.create_task(self._run_line(source, line))
        self._tasks[task] = source.batch
        task.add_done_callback(end)

    async def _run_line(self, source: _Source, line: StoredLine) -> None:
        """Hand on the result of one line; none, if nothing more is answered."""
        batch = source.batch
        try:
            content = await self._thread.call(partial(_content_of, batch, line))
            result = await self._answer(batch, line, content)
        except DiskError as error:
            # A row without its content is our fault, not that of the line.
            self.note_input_error(batch, error)
            source.lines.appendleft(line)
            self._pause(source)
            return
        if not source.is_paused:
            # Otherwise others were read since this one was.
            self.input_errors.pop(batch.serial, None)
        if result is not None:
            self._allowances.spend(batch.owner, result.usage)
            self._results.append(result)
            self._may_keep.set()

    def _pause(self, source: _Source) -> None:
        def go_on() -> None:
            source.is_paused = False
            self.may_fill.set()

        if not source.is_paused:
            source.is_paused = True
            asyncio.get_running_loop().call_later(limits.TROUBLE_S, go_on)

    async def _answer(
        self, batch: StoredBatch, line: StoredLine, content: bytes
    ) -> LineResult | None:
        """Try until there is a result. One that was held tries before another line can begin."""
        deaths = 0
        while not self.is_over:
            request_id = f"req-{uuid.uuid4().hex}"
            try:
                return await self._answerer.answer(
                    batch, line, content, request_id, is_suspect=deaths >= SUSPECT_FAILURES
                )
            except QueueFull as full:
                with self._counted(self._held, batch.owner):
                    seconds = max(full.retry_after_s, limits.LATER_S_MIN)
                    await asyncio.sleep(min(seconds, limits.LATER_S_MAX))
            except InputCrashed as crash:
                deaths += crash.deaths
                if deaths >= FAILURES_MAX:
                    return refused(crash, batch, line, request_id)
                # The backend does some work before a line comes that may end it: one by one.
                with self._counted(self._crashed, batch.owner):
                    async with self._crashed_turn:
                        await asyncio.sleep(limits.LATER_S_MAX)
            except EngineStopped:
                self.is_over = True
        return None

    @contextmanager
    def _counted(self, counter: Counter[str], owner: str) -> Iterator[None]:
        """A line of this owner waits within this context."""
        counter[owner] += 1
        self.may_fill.set()
        try:
            yield
        finally:
            counter[owner] -= 1
            self.may_fill.set()

    async def _keep_always(self) -> None:
        while True:
            await self._may_keep.wait()
            self._may_keep.clear()
            while self._results:
                await until_disk_works(self._keep, _PAUSED)

    async def _keep(self) -> None:
        """Write all results that are there, in one transaction."""
        results = list(self._results)
        owners = {each.batch.owner for each in self._sources.values()}
        used = {name: used for name, used in self._allowances.used().items() if name in owners}
        try:
            written = await self._thread.call(lambda store: store.batches.settle(results, used))
        except DiskError:
            self.is_disk_failing = True
            raise
        self.is_disk_failing = False
        in_store = set(map(id, results))
        self._results = [each for each in self._results if id(each) not in in_store]
        done = sum(each.is_done for each in written)
        self.done_count += done
        self.failed_count += len(written) - done
        self.settled.set()
        self.may_fill.set()


def _content_of(batch: StoredBatch, line: StoredLine, store: BatchStore) -> bytes:
    """On the store's thread: the text of a line. Raises DiskError."""
    with store.input_of(batch) as file:
        file.seek(line.start)
        return file.read(line.length)
