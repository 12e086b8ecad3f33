"""Tests of `Stages`: inputs take turns, a restart goes on, and a full store pauses the runner."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from jitney.engine.clock import SystemClock
from jitney.server.batches import limits
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.output import OutputFiles
from jitney.server.batches.rows import BatchStatus, StoredBatch
from jitney.server.batches.runner import LineRunner
from jitney.server.batches.stages import BatchBounds, Stages, Times
from jitney.server.batches.store import StoreThread
from tests.unit.server.batches.store_for_tests import NOW, add_file, new_batch
from tests.unit.server.batches.test_runner import WAIT_S, ScriptedAnswerer, at_once, run_until


class Parts:
    """All parts of jobs over one folder, as they are put together for a server."""

    def __init__(
        self, folder: Path, bounds: BatchBounds | None = None, times: Times | None = None
    ) -> None:
        self.thread = StoreThread(folder)
        self.thread.open()
        self.asker = ScriptedAnswerer(at_once)
        self.runner = LineRunner(self.thread, self.asker, Allowances((), SystemClock()))
        self.stages = Stages(
            self.thread,
            self.asker,
            self.runner,
            times=times or Times(SystemClock(), lambda: NOW),
            bounds=bounds or BatchBounds(),
        )

    async def create(self, count: int) -> StoredBatch:
        rows = [
            {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": {}}
            for number in range(count)
        ]
        content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        return await self.thread.call(
            lambda store: store.batches.create(new_batch(add_file(store, content)))
        )

    async def now(self, batch: StoredBatch) -> StoredBatch:
        return await self.thread.call(lambda store: store.batches.get(batch.serial))

    async def run_until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        await run_until(holds, self.runner.run(), self.stages.run())

    async def is_ended(self, batch: StoredBatch) -> bool:
        return not (await self.now(batch)).status.is_live


def test_a_long_input_does_not_keep_a_short_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards whoever comes second: inputs are checked a part at a time, in turn."""
    monkeypatch.setattr(limits, "CHECK_LINES", 10)
    parts = Parts(tmp_path)

    async def run() -> tuple[StoredBatch, StoredBatch]:
        long, short = await parts.create(3000), await parts.create(5)
        await parts.run_until(lambda: parts.is_ended(short))
        return await parts.now(long), await parts.now(short)

    long, short = asyncio.run(run())
    assert short.status is BatchStatus.COMPLETED
    assert long.status is BatchStatus.VALIDATING
    assert 0 < long.read_lines < 3000
    parts.thread.close()
    # A later process goes on from there.
    later = Parts(tmp_path)

    async def go_on() -> StoredBatch:
        await later.run_until(lambda: later.is_ended(long))
        return await later.now(long)

    done = asyncio.run(go_on())
    assert (done.status, done.total, done.completed) == (BatchStatus.COMPLETED, 3000, 3000)
    later.thread.close()


def test_an_output_that_takes_long_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards other batches: they are checked, cancelled and written beside a large output."""
    may_go_on = threading.Event()
    sync = OutputFiles.sync
    held: list[OutputFiles] = []

    def sync_slowly(files: OutputFiles) -> None:
        if not held:
            held.append(files)
            assert may_go_on.wait(WAIT_S)
        sync(files)

    monkeypatch.setattr(OutputFiles, "sync", sync_slowly)
    parts = Parts(tmp_path)

    async def run() -> tuple[StoredBatch, StoredBatch]:
        large = await parts.create(300)
        small: list[StoredBatch] = []

        async def is_small_done() -> bool:
            if held and not small:
                small.append(await parts.create(5))
            return bool(small) and await parts.is_ended(small[0])

        async def is_large_done() -> bool:
            if await is_small_done() and not may_go_on.is_set():
                assert (await parts.now(large)).status is BatchStatus.FINALIZING
                may_go_on.set()
            return await parts.is_ended(large)

        await parts.run_until(is_large_done)
        return await parts.now(large), await parts.now(small[0])

    try:
        large, small = asyncio.run(run())
    finally:
        may_go_on.set()
    assert (large.status, large.completed) == (BatchStatus.COMPLETED, 300)
    assert (small.status, small.completed) == (BatchStatus.COMPLETED, 5)
    parts.thread.close()


def test_no_line_is_begun_while_the_store_is_as_large_as_it_may_be(tmp_path: Path) -> None:
    """Guards the disk of the server: the batch waits, and goes on when there is room."""
    parts = Parts(tmp_path, BatchBounds(bytes_max=1))

    async def run() -> StoredBatch:
        batch = await parts.create(20)

        async def is_full() -> bool:
            is_running = (await parts.now(batch)).status is BatchStatus.IN_PROGRESS
            return parts.runner.is_full and is_running

        await parts.run_until(is_full)
        return await parts.now(batch)

    batch = asyncio.run(run())
    assert batch.completed <= parts.asker.in_flight_max
    parts.thread.close()
    roomy = Parts(tmp_path, BatchBounds(bytes_max=2**30))

    async def go_on() -> StoredBatch:
        await roomy.run_until(lambda: roomy.is_ended(batch))
        return await roomy.now(batch)

    assert asyncio.run(go_on()).completed == 20
    roomy.thread.close()


def test_time_is_counted_by_a_clock_that_only_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards batches against a clock that is put right: a step is no time, and what has passed is
    known after a restart."""
    wall = [NOW]
    batches: list[StoredBatch] = []

    def lived(passed_s: float, *, ends: bool = False) -> StoredBatch:
        """The batch, after a process in which so much time passed."""
        parts = Parts(tmp_path, times=Times(clock, lambda: wall[0]))
        # It has nothing to run: only time ends it.
        parts.asker.is_open = False

        async def run() -> StoredBatch:
            if not batches:
                batches.append(await parts.create(5))
            until = clock.at + passed_s

            async def is_noted() -> bool:
                if parts.stages.counts and clock.at < until:
                    # It has looked at the batches before.
                    clock.at = until
                    wall[0] += 90_000
                now = await parts.now(batches[0])
                is_counted = now.passed_s >= clock.at >= until
                return is_counted and ends == (now.outcome is not None)

            await parts.run_until(is_noted)
            return await parts.now(batches[0])

        try:
            return asyncio.run(run())
        finally:
            parts.thread.close()

    clock = SteppedClock()
    assert lived(40_000.0).status.is_live
    assert lived(40_000.0).status.is_live
    assert lived(10_000.0, ends=True).outcome is BatchStatus.EXPIRED


class SteppedClock:
    """Seconds that pass when the test says so."""

    at = 0.0

    def now(self) -> float:
        return self.at


def test_a_batch_whose_input_is_away_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards whoever comes second, and the first: it is checked when its file is back."""
    monkeypatch.setattr(limits, "TROUBLE_S", 0.02)
    parts = Parts(tmp_path)

    async def run() -> tuple[StoredBatch, StoredBatch]:
        first, second = await parts.create(5), await parts.create(5)
        path = parts.thread.store.files.path_of(first.input_file_id)
        path.rename(tmp_path / "away")
        await parts.run_until(lambda: parts.is_ended(second))
        before = await parts.now(first)
        (tmp_path / "away").rename(path)
        await parts.run_until(lambda: parts.is_ended(first))
        return before, await parts.now(first)

    before, after = asyncio.run(run())
    assert before.status is BatchStatus.VALIDATING
    assert (after.status, after.completed) == (BatchStatus.COMPLETED, 5)
    parts.thread.close()


def test_time_before_the_store_was_had_is_no_time_of_its_batches(tmp_path: Path) -> None:
    """Guards batches that another server leaves: whoever waited for them for days would end them
    at once."""
    clock = SteppedClock()
    parts = Parts(tmp_path, times=Times(clock, lambda: NOW))

    async def run() -> StoredBatch:
        batch = await parts.create(5)
        clock.at += 90_000
        await parts.run_until(lambda: parts.is_ended(batch))
        return await parts.now(batch)

    assert asyncio.run(run()).status is BatchStatus.COMPLETED
    parts.thread.close()


def test_an_input_that_was_cut_is_not_taken_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards lines that a bad disk lost: the batch waits for its content, and says so."""
    parts = Parts(tmp_path)

    async def run() -> StoredBatch:
        batch = await parts.create(50)
        path = parts.thread.store.files.path_of(batch.input_file_id)
        content = path.read_bytes()
        path.write_bytes(content[:1000])

        async def is_told() -> bool:
            return "pauses until its input can be read: it has 1000 bytes" in caplog.text

        await parts.run_until(is_told)
        assert (await parts.now(batch)).status is BatchStatus.VALIDATING
        path.write_bytes(content)
        await parts.run_until(lambda: parts.is_ended(batch))
        return await parts.now(batch)

    assert asyncio.run(run()).completed == 50
    parts.thread.close()
