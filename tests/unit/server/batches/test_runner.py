"""Tests of `LineRunner` and the store's thread, with an answerer that does what the test says."""

import asyncio
import json
import os
from collections.abc import Callable
from errno import EACCES, ENOENT, ENOTCONN, ESTALE, ETIMEDOUT
from pathlib import Path
from typing import Any

import pytest

from jitney.engine.clock import SystemClock
from jitney.errors import EngineStopped, InputCrashed, QueueFull
from jitney.server.batches import limits
from jitney.server.batches.batches import Batches
from jitney.server.batches.stages import Times
from jitney.server.batches.store import BatchStore
from tests.unit.server.batches.conftest import OpenBench
from tests.unit.server.batches.runner_for_tests import ScriptedAnswerer, run_until
from tests.unit.server.batches.store_for_tests import NOW, begun

pytestmark = pytest.mark.anyio


async def test_every_line_is_asked_once_and_never_too_many_at_a_time(open_bench: OpenBench) -> None:
    """Guards the engine: a batch of any length takes so many places and no more."""
    together = asyncio.Barrier(4)

    async def wait_for_four(owner: str, text: str) -> None:
        if text in ("a1", "a2", "a3", "a4"):
            await together.wait()

    bench = open_bench(wait_for_four)
    done = await bench.run_to_end(await bench.begin("a", 300))
    assert (done.completed, done.prompt_tokens) == (300, 300)
    assert set(bench.answerer.asked.values()) == {1}
    assert bench.answerer.most_in_flight == 4


async def test_owners_take_turns_however_long_their_batches_are(open_bench: OpenBench) -> None:
    """Guards a short batch behind a long one of somebody else."""
    order: list[str] = []

    async def note(owner: str, text: str) -> None:
        order.append(owner)
        await asyncio.sleep(0)

    bench = open_bench(note)
    await bench.run_to_end(await bench.begin("long", 200), await bench.begin("short", 20))
    last = max(place for place, owner in enumerate(order) if owner == "short")
    assert last < 60


async def test_a_line_without_room_waits_and_nobody_overtakes_it(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards wide lines: while one waits for room, no other line takes it."""
    monkeypatch.setattr(limits, "LATER_S_MIN", 0.02)
    refusals = iter([QueueFull("full", 0.0), QueueFull("full", 0.0)])
    begun_meanwhile: list[str] = []
    is_waiting = False

    async def narrow(owner: str, text: str) -> None:
        nonlocal is_waiting
        if text == "a3":
            error = next(refusals, None)
            is_waiting = error is not None
            if error is not None:
                raise error
        elif is_waiting:
            begun_meanwhile.append(text)

    bench = open_bench(narrow)
    await bench.run_to_end(await bench.begin("a", 12))
    assert bench.answerer.asked["a3"] == 3
    # Only those that were on their way already.
    assert len(begun_meanwhile) < bench.answerer.in_flight_max


@pytest.mark.parametrize(
    ("deaths", "asked", "alone", "failed"),
    [([1, 1, 1], 4, 2, 0), ([1, 1, 1, 1], 4, 2, 1), ([4], 1, 0, 1), ([2, 1], 3, 2, 0)],
)
async def test_a_line_with_which_backends_end_is_a_suspect_and_fails_at_the_fourth(
    open_bench: OpenBench,
    monkeypatch: pytest.MonkeyPatch,
    deaths: list[int],
    asked: int,
    alone: int,
    failed: int,
) -> None:
    """Guards the backend: such a line was asked as long as its batch lived, and ended it each time.
    One that a few kills from outside have met is answered. The id of a failed one is in the log."""
    monkeypatch.setattr(limits, "LATER_S_MAX", 0.01)
    to_come = iter(deaths)

    async def end_some(owner: str, text: str) -> None:
        if text == "a3" and (count := next(to_come, 0)):
            raise InputCrashed("it ended", deaths=count)

    bench = open_bench(end_some)
    done = await bench.run_to_end(await bench.begin("a", 8))
    assert (done.completed, done.failed) == (8 - failed, failed)
    assert (bench.answerer.asked["a3"], bench.answerer.asked_alone["a3"]) == (asked, alone)
    assert bench.answerer.asked.total() == 7 + asked
    assert bench.answerer.asked_alone.total() == alone
    if failed:
        lines = await bench.thread.call(lambda store: store.batches.written_lines(done.serial, 2))
        response = json.loads(lines[0].reply or b"")["response"]
        assert response["request_id"] == bench.answerer.last_ids["a3"]


async def test_a_line_with_which_the_backend_ended_holds_up_nobody(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards other keys: while it waits to be asked again, all other lines are answered, also where
    one line is asked at a time."""
    monkeypatch.setattr(limits, "LATER_S_MAX", 3600.0)

    async def end_one(owner: str, text: str) -> None:
        if text == "a1":
            raise InputCrashed("it ended")

    bench = open_bench(end_one)
    bench.answerer.in_flight_max = 1
    batches = [await bench.begin("a", 6), await bench.begin("b", 6)]

    async def are_answered() -> bool:
        return sum([(await bench.now(each)).completed for each in batches]) == 11

    await bench.run_until(are_answered)
    assert set(bench.answerer.asked.values()) == {1}


async def test_lines_with_which_the_backend_ended_are_bounded(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the backend and the lines of others: of a million of such lines few are begun."""
    monkeypatch.setattr(limits, "LATER_S_MAX", 3600.0)

    async def end_all(owner: str, text: str) -> None:
        if owner == "a":
            raise InputCrashed("it ended")

    bench = open_bench(end_all)
    await bench.begin("a", 100)
    await bench.run_to_end(await bench.begin("b", 100))
    # As many as were on their way when the first of them was known.
    asked = sum(count for text, count in bench.answerer.asked.items() if text.startswith("a"))
    assert limits.CRASHED_KEY_MAX <= asked <= bench.answerer.in_flight_max


async def test_what_was_running_when_the_engine_stopped_is_pending(open_bench: OpenBench) -> None:
    """Guards the next start: it runs those lines again, and only those."""

    async def stop_at_seven(owner: str, text: str) -> None:
        if int(text[1:]) >= 7:
            raise EngineStopped("no more")

    bench = open_bench(stop_at_seven)
    batch = await bench.begin("a", 20)

    async def is_over() -> bool:
        return bench.runner.is_over and (await bench.now(batch)).completed == 6

    await bench.run_until(is_over)
    again = open_bench()
    again.runner.begin(await again.now(batch))
    await again.run_to_end(batch)
    assert sorted(again.answerer.asked) == sorted(f"a{number}" for number in range(7, 21))


async def test_a_line_that_ends_unexpectedly_is_run_again(tmp_path: Path) -> None:
    """Guards a batch against a fault of ours: the line has no result, so the jobs begin again."""
    faults = iter([RuntimeError("a fault of ours")])

    async def fail_once(owner: str, text: str) -> None:
        if text == "a3" and (fault := next(faults, None)) is not None:
            raise fault

    answerer = ScriptedAnswerer(fail_once)
    batches = Batches(tmp_path, answerer, times=Times(SystemClock(), lambda: NOW))
    batches.thread.open()
    serial = (await batches.thread.call(lambda store: begun(store, 8, "a"))).serial

    async def is_done() -> bool:
        batch = await batches.thread.call(lambda store: store.batches.get(serial))
        return batch.completed == 8

    batches.start()
    await run_until(is_done)
    await batches.stop()
    assert answerer.asked["a3"] == 2
    batches.close()


async def test_a_dropped_batch_gets_no_more_results(open_bench: OpenBench) -> None:
    """Guards a cancel: lines that run are given up at once."""

    async def hang(owner: str, text: str) -> None:
        if owner == "a":
            await asyncio.get_running_loop().create_future()

    bench = open_bench(hang)
    dropped = await bench.begin("a", 10)

    async def drop() -> bool:
        if bench.answerer.in_flight < 4:
            return False
        await bench.runner.drop(dropped.serial)
        return True

    await bench.run_until(drop)
    assert bench.answerer.in_flight == 0
    await bench.run_to_end(await bench.begin("b", 5))
    assert (await bench.now(dropped)).completed == 0


async def test_an_answer_that_comes_too_late_is_counted_nowhere(open_bench: OpenBench) -> None:
    """Guards the metrics: lines with a result are those whose result was written."""

    async def cancel_meanwhile(owner: str, text: str) -> None:
        if owner == "a":
            await bench.thread.call(
                lambda store: store.batches.cancel(owner, store.batches.live()[0].id, NOW)
            )

    bench = open_bench(cancel_meanwhile)
    await bench.begin("a", 3)

    async def is_asked() -> bool:
        return bench.answerer.asked.total() == 3 and bench.runner.in_flight_count == 0

    await bench.run_until(is_asked)
    await bench.run_to_end(await bench.begin("b", 2))
    assert (bench.runner.done_count, bench.runner.failed_count) == (2, 0)


async def test_answers_are_kept_until_the_disk_takes_them(open_bench: OpenBench) -> None:
    """Guards answers that were paid for: none is asked again because the disk was full."""

    def set_pages(count: int) -> Callable[[BatchStore], object]:
        return lambda store: store.database.value(f"PRAGMA max_page_count = {count}")

    bench = open_bench()
    batch = await bench.begin("a", 200)
    await bench.thread.call(set_pages(1))
    asked: list[int] = []

    async def is_settled() -> bool:
        if bench.runner.is_disk_failing and not asked:
            # As many as may be in memory, and then no more.
            asked.append(bench.answerer.asked.total())
            await bench.thread.call(set_pages(1_000_000))
        return (await bench.now(batch)).is_settled

    await bench.run_until(is_settled)
    assert asked[0] < 200
    assert (await bench.now(batch)).completed == 200
    assert set(bench.answerer.asked.values()) == {1}


@pytest.mark.parametrize("number", [ENOENT, EACCES, ESTALE, ENOTCONN, ETIMEDOUT])
async def test_an_input_that_is_away_pauses_its_batch_and_no_other(
    open_bench: OpenBench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """Guards a night of work: a folder that is away for a moment is no answer to a line. The pause
    is logged once, and ends by itself."""
    away: set[Path] = set()
    opened = Path.open

    def open_unless_away(path: Path, *words: Any, **options: Any) -> Any:
        if path in away:
            raise OSError(number, os.strerror(number))
        return opened(path, *words, **options)

    monkeypatch.setattr(Path, "open", open_unless_away)
    bench = open_bench()
    batch, other = await bench.begin("a", 30), await bench.begin("b", 30)
    away.add(bench.input_path(batch))

    async def is_settled() -> bool:
        if away and (await bench.now(other)).is_settled:
            before = await bench.now(batch)
            assert (before.completed, before.failed) == (0, 0)
            away.clear()
        return (await bench.now(batch)).is_settled

    await bench.run_until(is_settled)
    after = await bench.now(batch)
    assert (after.completed, after.failed) == (30, 0)
    assert set(bench.answerer.asked.values()) == {1}
    assert caplog.text.count("pauses until its input can be read") == 1
