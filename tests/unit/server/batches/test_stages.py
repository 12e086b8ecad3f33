"""Tests of `Stages`: inputs take turns, a restart goes on, and a full store pauses the runner."""

import threading
from pathlib import Path

import pytest

from jitney.server.batches import limits
from jitney.server.batches.content_files import OutputFiles
from jitney.server.batches.rows import BatchStatus, StoredBatch
from jitney.server.batches.stages import BatchBounds, Times
from tests.clock_for_tests import HandClock
from tests.unit.server.batches.conftest import OpenBench
from tests.unit.server.batches.runner_for_tests import WAIT_S
from tests.unit.server.batches.store_for_tests import NOW

pytestmark = pytest.mark.anyio


async def test_a_long_input_does_not_keep_a_short_one_waiting(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards whoever comes second: inputs are checked a part at a time, in turn."""
    monkeypatch.setattr(limits, "CHECK_LINES", 10)
    bench = open_bench()
    long, short = await bench.create(600), await bench.create(5)
    assert (await bench.move_to_end(short)).status is BatchStatus.COMPLETED
    long = await bench.now(long)
    assert long.status is BatchStatus.VALIDATING
    assert 0 < long.read_lines < 600
    # A later process goes on from there.
    done = await open_bench().move_to_end(long)
    assert (done.status, done.total, done.completed) == (BatchStatus.COMPLETED, 600, 600)


async def test_an_output_that_takes_long_keeps_nobody_waiting(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
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
    bench = open_bench()
    large = await bench.create(300)
    small: list[StoredBatch] = []

    async def is_small_done() -> bool:
        if held and not small:
            small.append(await bench.create(5))
        return bool(small) and await bench.is_ended(small[0])

    async def is_large_done() -> bool:
        if await is_small_done() and not may_go_on.is_set():
            assert (await bench.now(large)).status is BatchStatus.FINALIZING
            may_go_on.set()
        return await bench.is_ended(large)

    try:
        await bench.move_until(is_large_done)
    finally:
        may_go_on.set()
    for batch, count in ((large, 300), (small[0], 5)):
        now = await bench.now(batch)
        assert (now.status, now.completed) == (BatchStatus.COMPLETED, count)


async def test_no_line_is_begun_while_the_store_is_as_large_as_it_may_be(
    open_bench: OpenBench,
) -> None:
    """Guards the disk of the server: the batch waits, and goes on when there is room."""
    bench = open_bench(bounds=BatchBounds(bytes_max=1))
    batch = await bench.create(20)

    async def is_full() -> bool:
        is_running = (await bench.now(batch)).status is BatchStatus.IN_PROGRESS
        return bench.runner.is_full and is_running

    await bench.move_until(is_full)
    assert (await bench.now(batch)).completed <= bench.answerer.in_flight_max
    roomy = open_bench(bounds=BatchBounds(bytes_max=2**30))
    assert (await roomy.move_to_end(batch)).completed == 20


async def test_time_is_counted_by_a_clock_that_only_grows(open_bench: OpenBench) -> None:
    """Guards batches against a clock that is put right: a step is no time, and what has passed is
    known after a restart."""
    clock, wall = HandClock(), [NOW]
    batches: list[StoredBatch] = []

    async def lived(passed_s: float, *, ends: bool = False) -> StoredBatch:
        """The batch, after a process in which so much time passed."""
        bench = open_bench(times=Times(clock, lambda: wall[0]))
        # It has nothing to run: only time ends it.
        bench.answerer.is_open = False
        if not batches:
            batches.append(await bench.create(5))
        until = clock.at + passed_s

        async def is_noted() -> bool:
            if bench.stages.counts and clock.at < until:
                # It has looked at the batches before.
                clock.at = until
                wall[0] += 90_000
            now = await bench.now(batches[0])
            is_counted = now.passed_s >= clock.at >= until
            # Ended, not ending: a stop meanwhile leaves open what a thread is about to write.
            return is_counted and ends != now.status.is_live

        await bench.move_until(is_noted)
        return await bench.now(batches[0])

    assert (await lived(40_000.0)).status.is_live
    assert (await lived(40_000.0)).status.is_live
    assert (await lived(10_000.0, ends=True)).status is BatchStatus.EXPIRED


async def test_a_batch_whose_input_is_away_keeps_no_other_waiting(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    """Guards whoever comes second, and the first: it is checked when its file is back."""
    bench = open_bench()
    first, second = await bench.create(5), await bench.create(5)
    path = bench.input_path(first)
    path.rename(tmp_path / "away")
    await bench.move_to_end(second)
    assert (await bench.now(first)).status is BatchStatus.VALIDATING
    (tmp_path / "away").rename(path)
    after = await bench.move_to_end(first)
    assert (after.status, after.completed) == (BatchStatus.COMPLETED, 5)


async def test_time_before_the_store_was_had_is_no_time_of_its_batches(
    open_bench: OpenBench,
) -> None:
    """Guards batches that another server leaves: whoever waited for them for days would end them
    at once."""
    clock = HandClock()
    bench = open_bench(times=Times(clock, lambda: NOW))
    batch = await bench.create(5)
    clock.at += 90_000
    assert (await bench.move_to_end(batch)).status is BatchStatus.COMPLETED


async def test_an_input_that_was_cut_is_not_taken_for_the_whole(
    open_bench: OpenBench, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards lines that a bad disk lost: the batch waits for its content, and says so."""
    bench = open_bench()
    batch = await bench.create(50)
    path = bench.input_path(batch)
    content = path.read_bytes()
    path.write_bytes(content[:1000])

    async def is_logged() -> bool:
        return "pauses until its input can be read: it has 1000 bytes" in caplog.text

    await bench.move_until(is_logged)
    assert (await bench.now(batch)).status is BatchStatus.VALIDATING
    path.write_bytes(content)
    assert (await bench.move_to_end(batch)).completed == 50
