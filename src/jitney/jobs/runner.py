"""Runs the lines of batches: `LineRunner`. Event loop.

It takes pending lines from the store, asks for their answers, at most so many at once, and writes
the results back, as many together as have come. Owners take turns. It remembers nothing that
matters: whatever is lost with the process is pending in the store. A key that has used up its
tokens (`jitney.jobs.allowances`) has no turn.

While the disk is full or fails, answers are kept in memory, no new line is begun, and the write is
tried again. A line that finds no room waits, and no other begins before it.
"""

import asyncio
import logging
from collections import Counter, deque
from dataclasses import dataclass, field

from jitney.engine.clock import SystemClock
from jitney.jobs import limits
from jitney.jobs.allowances import Allowances
from jitney.jobs.database import DiskTrouble, disk_troubles
from jitney.jobs.line_asker import Asker, AskingOver, LineAnswer, TryLater
from jitney.jobs.lines import read_content
from jitney.jobs.objects import answered_line, refused_line
from jitney.jobs.store import JobStore
from jitney.jobs.store_thread import StoreThread
from jitney.jobs.stored import LineResult, LineTokens, PendingLine, StoredBatch

_log = logging.getLogger("jitney.jobs")

LineKey = tuple[int, int]
"""The serial of a batch, and the number of a line."""


@dataclass(slots=True, eq=False)
class _Source:
    """The pending lines of one batch, in order. `after` is the last number that was read."""

    batch: StoredBatch
    after: int = 0
    lines: deque[PendingLine] = field(default_factory=deque)
    is_empty: bool = False


class LineRunner:
    """Runs lines until its task is cancelled, or nothing more is answered."""

    def __init__(
        self, thread: StoreThread, asker: Asker, allowances: Allowances | None = None
    ) -> None:
        self._thread = thread
        self._asker = asker
        self._allowances = allowances or Allowances((), SystemClock())
        self._sources: dict[int, _Source] = {}
        self._asking: dict[LineKey, asyncio.Task[None]] = {}
        self._in_flight: Counter[str] = Counter()
        """Lines of each owner that are being asked."""
        self._answered: list[LineResult] = []
        self._held_count = 0
        """Lines that wait for room."""
        self._is_troubled = False
        self._was_told = False
        """Whether the trouble of now is in the log."""
        self.is_full = False
        """Whether the store is as large as it may be: no line is begun then."""
        self.is_over = False
        """Whether nothing more is answered here."""
        self.done_count = self.failed_count = 0
        """Lines that got their results here."""
        self._may_fill = asyncio.Event()
        self._may_keep = asyncio.Event()
        self.settled = asyncio.Event()
        """Set when results were written."""

    @property
    def in_flight_count(self) -> int:
        """Lines that are being asked."""
        return len(self._asking)

    async def run(self) -> None:
        """Run lines. It ends with its task, and with an error that a line does not expect: the next
        runner finds that line pending."""
        self._allowances.adopt(self._thread.store.allowances.at_open)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._allowances.tend(self._thread, self.wake))
            tasks.create_task(self._fill_always(tasks))
            tasks.create_task(self._keep_always())

    def begin(self, batch: StoredBatch) -> None:
        """Run the lines of this batch, too."""
        if batch.serial not in self._sources and self._asker.serves(batch.owner, batch.model):
            self._sources[batch.serial] = _Source(batch)
            self._may_fill.set()

    def wake(self) -> None:
        """There may be room again."""
        self._may_fill.set()

    async def drop(self, serial: int) -> None:
        """Run no more lines of this batch. What has no result yet gets none."""
        self._sources.pop(serial, None)
        dropped = [task for (batch, _), task in self._asking.items() if batch == serial]
        for task in dropped:
            task.cancel()
        await asyncio.gather(*dropped, return_exceptions=True)
        self._answered = [each for each in self._answered if each.batch != serial]

    async def _fill_always(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._may_fill.clear()
            while self._has_room() and (found := await self._next_line()) is not None:
                self._start(tasks, *found)
            await self._may_fill.wait()

    def _has_room(self) -> bool:
        return (
            len(self._asking) < self._asker.in_flight_max
            and len(self._answered) < limits.UNKEPT_MAX
            and not self._held_count
            and not (self._is_troubled or self.is_full or self.is_over)
            and self._asker.is_open
        )

    async def _next_line(self) -> tuple[_Source, PendingLine] | None:
        """The next line of the owner that has the fewest; its oldest batch first."""
        while True:
            ready = [each for each in self._sources.values() if not each.is_empty]
            ready = [each for each in ready if self._allowances.has_left(each.batch.owner)]
            if not ready:
                return None
            source = min(ready, key=self._turn_of)
            if not source.lines:
                await self._read_more(source)
            # It may have been dropped meanwhile.
            if source.lines and source.batch.serial in self._sources:
                return source, source.lines.popleft()

    def _turn_of(self, source: _Source) -> tuple[int, int]:
        return self._in_flight[source.batch.owner], source.batch.serial

    async def _read_more(self, source: _Source) -> None:
        serial, after = source.batch.serial, source.after
        try:
            found = await self._thread.call(
                lambda store: store.lines.pending(serial, after, limits.PENDING_LINES)
            )
        except DiskTrouble as trouble:
            await self._wait_out(trouble)
            return
        self._was_told = False
        source.lines.extend(found)
        source.is_empty = not found
        if found:
            source.after = found[-1].number

    def _start(self, tasks: asyncio.TaskGroup, source: _Source, line: PendingLine) -> None:
        key, owner = (source.batch.serial, line.number), source.batch.owner
        task = tasks.create_task(self._run_line(source.batch, line))
        self._asking[key] = task
        self._in_flight[owner] += 1

        def ended(_: "asyncio.Task[None]") -> None:
            del self._asking[key]
            self._in_flight[owner] -= 1
            self._may_fill.set()

        task.add_done_callback(ended)

    async def _run_line(self, batch: StoredBatch, line: PendingLine) -> None:
        """Hand on the result of one line; none, if nothing more is answered."""
        try:
            content = await self._read(batch, line)
        except OSError as error:
            _log.warning("The input of %s cannot be read: %s", batch.id, error.strerror)
            result = _unreadable(batch, line)
        else:
            answer = await self._ask(batch.owner, content)
            if answer is None:
                return
            self._allowances.spend(batch.owner, answer.tokens)
            result = _answered(batch, line, answer)
        self._answered.append(result)
        self._may_keep.set()

    async def _read(self, batch: StoredBatch, line: PendingLine) -> bytes:
        """Raises OSError if the input is not there any more."""

        def read(store: JobStore) -> bytes:
            with disk_troubles():
                return read_content(store.input_of(batch), line.start, line.length)

        while True:
            try:
                return await self._thread.call(read)
            except DiskTrouble:
                await self._hold(limits.TROUBLE_S)

    async def _ask(self, owner: str, content: bytes) -> LineAnswer | None:
        """Ask until there is an answer. One that was held asks before another line can begin."""
        while not self.is_over:
            try:
                return await self._asker.ask(owner, content)
            except TryLater as later:
                await self._hold(later.seconds)
            except AskingOver:
                self.is_over = True
        return None

    async def _hold(self, seconds: float) -> None:
        self._held_count += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._held_count -= 1
            self._may_fill.set()

    async def _keep_always(self) -> None:
        while True:
            await self._may_keep.wait()
            self._may_keep.clear()
            while self._answered:
                await self._keep()

    async def _keep(self) -> None:
        """Write all answers that are there, in one transaction."""
        results = list(self._answered)
        used = self._allowances.used_by({each.batch.owner for each in self._sources.values()})
        try:
            written = await self._thread.call(lambda store: store.lines.settle(results, used))
        except DiskTrouble as trouble:
            await self._wait_out(trouble)
            return
        self._was_told = False
        kept = set(map(id, results))
        self._answered = [each for each in self._answered if id(each) not in kept]
        done = sum(each.is_done for each in written)
        self.done_count += done
        self.failed_count += len(written) - done
        self.settled.set()
        self._may_fill.set()

    async def _wait_out(self, trouble: DiskTrouble) -> None:
        """The disk is full or fails: pause, and say so once."""
        if not self._was_told:
            _log.warning("The jobs pause until the disk can be written to: %s", trouble)
        self._is_troubled = self._was_told = True
        try:
            await asyncio.sleep(limits.TROUBLE_S)
        finally:
            self._is_troubled = False
        self._may_fill.set()


def _unreadable(batch: StoredBatch, line: PendingLine) -> LineResult:
    message = "The input of the batch cannot be read any more."
    reply = refused_line(line.number, line.custom_id, "file_not_found", message)
    return _result(batch, line, reply, LineTokens(), is_done=False)


def _answered(batch: StoredBatch, line: PendingLine, answer: LineAnswer) -> LineResult:
    reply = answered_line(line.custom_id, answer.status, answer.request_id, answer.body)
    return _result(batch, line, reply, answer.tokens, is_done=answer.status == 200)


def _result(
    batch: StoredBatch, line: PendingLine, reply: bytes, tokens: LineTokens, *, is_done: bool
) -> LineResult:
    return LineResult(
        batch=batch.serial, number=line.number, is_done=is_done, reply=reply, tokens=tokens
    )
