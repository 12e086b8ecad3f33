"""Tests of `LineRunner` and the store's thread, with an asker that does what the test says."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from errno import EACCES, ENOENT, ENOTCONN, ESTALE, ETIMEDOUT
from pathlib import Path
from typing import Any

import pytest

from jitney.engine.answer import Usage
from jitney.engine.clock import SystemClock
from jitney.errors import EngineStopped, InputCrashed, QueueFull
from jitney.server.batches import limits
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.answer_line import LineAnswer, LineAnswerer
from jitney.server.batches.batches import Batches
from jitney.server.batches.rows import StoredBatch, StoredLine
from jitney.server.batches.runner import LineRunner
from jitney.server.batches.stages import Times
from jitney.server.batches.store import BatchStore, StoreThread
from tests.unit.server.batches.store_for_tests import NOW, add_file, new_batch

WAIT_S = 60.0


async def run_until(
    holds: Callable[[], Awaitable[bool]], *work: Coroutine[None, None, None]
) -> None:
    """Do this work until something holds, with a limit."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        async with asyncio.timeout(WAIT_S):
            while not await holds():
                await asyncio.sleep(0.005)
                assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class ScriptedAnswerer(LineAnswerer):
    """Answers with the line itself, after what the script does."""

    script: Callable[[str, str], Awaitable[None]]
    in_flight_max: int = 4
    line_bytes_max: int = 1000
    values_max: int = 1000
    is_open: bool = True
    asked: Counter[str] = field(default_factory=Counter)
    asked_alone: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    most_in_flight: int = 0

    def serves(self, owner: str, model: str) -> bool:
        return model == "fake"

    async def answer(
        self, owner: str, custom_id: str, content: bytes, *, is_suspect: bool = False
    ) -> LineAnswer:
        text = content.decode().strip()
        self.asked[text] += 1
        self.asked_alone[text] += is_suspect
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.script(owner, text)
        finally:
            self.in_flight -= 1
        return ANSWER


ANSWER = LineAnswer(
    status=200,
    request_id="req-x",
    body=b"{}",
    usage=Usage(prompt_count=1, completion_count=0, cached_count=0),
)


def ready(store: BatchStore, owner: str, count: int) -> StoredBatch:
    """A batch of lines with a text each."""
    texts = [f"{owner}{number}\n".encode() for number in range(1, count + 1)]
    batch = store.batches.create(new_batch(add_file(store, b"".join(texts), owner)))
    lines, start = [], 0
    for number, text in enumerate(texts, 1):
        lines.append(
            StoredLine(number=number, start=start, length=len(text), custom_id=f"c{number}")
        )
        start += len(text)
    store.batches.add_lines(batch, lines, start, count)
    store.batches.begin(batch.serial, NOW)
    return store.batches.get(batch.serial)


class Bench:
    """A runner over a store in a folder."""

    def __init__(self, folder: Path, asker: ScriptedAnswerer) -> None:
        self.thread = StoreThread(folder)
        self.thread.open()
        self.asker = asker
        self.runner = LineRunner(self.thread, asker, Allowances((), SystemClock()))

    async def begin(self, owner: str, count: int) -> StoredBatch:
        batch = await self.thread.call(lambda store: ready(store, owner, count))
        self.runner.begin(batch)
        return batch

    async def now(self, batch: StoredBatch) -> StoredBatch:
        return await self.thread.call(lambda store: store.batches.get(batch.serial))

    async def run_until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Run lines until this holds, with a limit."""
        await run_until(holds, self.runner.run())

    async def run_to_end(self, *batches: StoredBatch) -> None:
        async def are_settled() -> bool:
            return all([(await self.now(batch)).is_settled for batch in batches])

        await self.run_until(are_settled)


async def at_once(owner: str, text: str) -> None:
    """Answer at once."""


def bench(folder: Path, script: Callable[[str, str], Awaitable[None]] = at_once) -> Bench:
    folder.mkdir(exist_ok=True)
    return Bench(folder, ScriptedAnswerer(script))


def test_every_line_is_asked_once_and_never_too_many_at_a_time(tmp_path: Path) -> None:
    """Guards the engine: a batch of any length takes so many places and no more."""
    together = asyncio.Barrier(4)

    async def wait_for_four(owner: str, text: str) -> None:
        if text in ("a1", "a2", "a3", "a4"):
            await together.wait()

    made = bench(tmp_path, wait_for_four)

    async def run() -> StoredBatch:
        batch = await made.begin("a", 300)
        await made.run_to_end(batch)
        return await made.now(batch)

    done = asyncio.run(run())
    assert (done.completed, done.prompt_tokens) == (300, 300)
    assert set(made.asker.asked.values()) == {1}
    assert made.asker.most_in_flight == 4
    made.thread.close()


def test_owners_take_turns_however_long_their_batches_are(tmp_path: Path) -> None:
    """Guards a short batch behind a long one of somebody else."""
    order: list[str] = []
    made: Bench

    async def note(owner: str, text: str) -> None:
        order.append(owner)
        await asyncio.sleep(0)

    made = bench(tmp_path, note)

    async def run() -> None:
        long = await made.begin("long", 200)
        short = await made.begin("short", 20)
        await made.run_to_end(long, short)

    asyncio.run(run())
    last = max(place for place, owner in enumerate(order) if owner == "short")
    assert last < 60
    made.thread.close()


def test_a_line_without_room_waits_and_nobody_overtakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards wide lines: while one waits for room, no other line takes it."""
    monkeypatch.setattr(limits, "LATER_S_MIN", 0.02)
    refusals = iter([QueueFull("full", 0.0), QueueFull("full", 0.0)])
    made: Bench
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

    made = bench(tmp_path, narrow)

    async def run() -> None:
        await made.run_to_end(await made.begin("a", 12))

    asyncio.run(run())
    assert made.asker.asked["a3"] == 3
    # Only those that were on their way already.
    assert len(begun_meanwhile) < made.asker.in_flight_max
    made.thread.close()


@pytest.mark.parametrize(
    ("deaths", "asked", "alone", "failed"),
    [([1, 1, 1], 4, 2, 0), ([1, 1, 1, 1], 4, 2, 1), ([4], 1, 0, 1), ([2, 1], 3, 2, 0)],
)
def test_a_line_with_which_backends_end_is_a_suspect_and_fails_at_the_fourth(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deaths: list[int],
    asked: int,
    alone: int,
    failed: int,
) -> None:
    """Guards the backend: such a line was asked as long as its batch lived, and ended it each time.
    One that a few kills from outside have met is answered."""
    monkeypatch.setattr(limits, "LATER_S_MAX", 0.01)
    to_come = iter(deaths)

    async def end_some(owner: str, text: str) -> None:
        if text == "a3" and (count := next(to_come, 0)):
            raise InputCrashed("it ended", deaths=count)

    made = bench(tmp_path, end_some)

    async def run() -> StoredBatch:
        batch = await made.begin("a", 8)
        await made.run_to_end(batch)
        return await made.now(batch)

    done = asyncio.run(run())
    assert (done.completed, done.failed) == (8 - failed, failed)
    assert (made.asker.asked["a3"], made.asker.asked_alone["a3"]) == (asked, alone)
    assert made.asker.asked.total() == 7 + asked
    assert made.asker.asked_alone.total() == alone
    made.thread.close()


def test_a_line_with_which_the_backend_ended_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards other keys: while it waits to be asked again, all other lines are answered, also where
    one line is asked at a time."""
    monkeypatch.setattr(limits, "LATER_S_MAX", 3600.0)

    async def end_one(owner: str, text: str) -> None:
        if text == "a1":
            raise InputCrashed("it ended")

    made = bench(tmp_path, end_one)
    made.asker.in_flight_max = 1

    async def run() -> None:
        batches = [await made.begin("a", 6), await made.begin("b", 6)]

        async def are_answered() -> bool:
            return sum([(await made.now(each)).completed for each in batches]) == 11

        await made.run_until(are_answered)

    asyncio.run(run())
    assert set(made.asker.asked.values()) == {1}
    made.thread.close()


def test_lines_with_which_the_backend_ended_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the backend and the lines of others: of a million of such lines few are begun."""
    monkeypatch.setattr(limits, "LATER_S_MAX", 3600.0)

    async def end_all(owner: str, text: str) -> None:
        if owner == "a":
            raise InputCrashed("it ended")

    made = bench(tmp_path, end_all)

    async def run() -> None:
        await made.begin("a", 100)
        await made.run_to_end(await made.begin("b", 100))

    asyncio.run(run())
    # As many as were on their way when the first of them was known.
    asked = sum(count for text, count in made.asker.asked.items() if text.startswith("a"))
    assert limits.CRASHED_KEY_MAX <= asked <= made.asker.in_flight_max
    made.thread.close()


def test_what_was_running_when_the_engine_stopped_is_pending(tmp_path: Path) -> None:
    """Guards the next start: it runs those lines again, and only those."""

    async def stop_at_seven(owner: str, text: str) -> None:
        if int(text[1:]) >= 7:
            raise EngineStopped("no more")

    made = bench(tmp_path, stop_at_seven)

    async def run() -> StoredBatch:
        batch = await made.begin("a", 20)

        async def is_over() -> bool:
            return made.runner.is_over and (await made.now(batch)).completed == 6

        await made.run_until(is_over)
        return batch

    batch = asyncio.run(run())
    made.thread.close()
    again = bench(tmp_path)

    async def go_on() -> None:
        again.runner.begin(await again.now(batch))
        await again.run_to_end(batch)

    asyncio.run(go_on())
    assert sorted(again.asker.asked) == sorted(f"a{number}" for number in range(7, 21))
    again.thread.close()


def test_a_line_that_ends_unexpectedly_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a batch against a fault of ours: the line has no result, so the jobs begin again."""
    monkeypatch.setattr(limits, "TROUBLE_S", 0.02)
    faults = iter([RuntimeError("a fault of ours")])

    async def fail_once(owner: str, text: str) -> None:
        if text == "a3" and (fault := next(faults, None)) is not None:
            raise fault

    asker = ScriptedAnswerer(fail_once)
    batches = Batches(tmp_path, asker, times=Times(SystemClock(), lambda: NOW))
    batches.thread.open()

    async def run() -> StoredBatch:
        batch = await batches.thread.call(lambda store: ready(store, "a", 8))
        serial = batch.serial
        batches.start()
        try:
            async with asyncio.timeout(WAIT_S):
                while not batch.is_settled:
                    await asyncio.sleep(0.005)
                    batch = await batches.thread.call(lambda store: store.batches.get(serial))
        finally:
            await batches.stop()
        return batch

    assert asyncio.run(run()).completed == 8
    assert asker.asked["a3"] == 2
    batches.close()


def test_a_dropped_batch_gets_no_more_results(tmp_path: Path) -> None:
    """Guards a cancel: lines that run are given up at once."""
    never: Callable[[str, str], Awaitable[None]]

    async def hang(owner: str, text: str) -> None:
        if owner == "a":
            await asyncio.get_running_loop().create_future()

    never = hang
    made = bench(tmp_path, never)

    async def run() -> StoredBatch:
        dropped = await made.begin("a", 10)

        async def drop() -> bool:
            if made.asker.in_flight < 4:
                return False
            await made.runner.drop(dropped.serial)
            return True

        await made.run_until(drop)
        assert made.asker.in_flight == 0
        other = await made.begin("b", 5)
        await made.run_to_end(other)
        return await made.now(dropped)

    assert asyncio.run(run()).completed == 0
    made.thread.close()


def test_an_answer_that_comes_too_late_is_counted_nowhere(tmp_path: Path) -> None:
    """Guards the metrics: lines with a result are those whose result was written."""
    made: Bench

    async def cancel_meanwhile(owner: str, text: str) -> None:
        if owner == "a":
            await made.thread.call(
                lambda store: store.batches.cancel(owner, store.batches.live()[0].id, NOW)
            )

    made = bench(tmp_path, cancel_meanwhile)

    async def run() -> None:
        await made.begin("a", 3)

        async def is_asked() -> bool:
            return made.asker.asked.total() == 3 and made.runner.in_flight_count == 0

        await made.run_until(is_asked)
        await made.run_to_end(await made.begin("b", 2))

    asyncio.run(run())
    assert (made.runner.done_count, made.runner.failed_count) == (2, 0)
    made.thread.close()


def test_answers_are_kept_until_the_disk_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards answers that were paid for: none is asked again because the disk was full."""
    monkeypatch.setattr(limits, "TROUBLE_S", 0.02)
    made = bench(tmp_path)

    def set_pages(count: int) -> Callable[[BatchStore], object]:
        def set_max(store: BatchStore) -> object:
            with store._database.reading() as connection:
                return connection.execute(f"PRAGMA max_page_count = {count}").fetchone()

        return set_max

    async def run() -> StoredBatch:
        batch = await made.begin("a", 200)
        await made.thread.call(set_pages(1))

        asked: list[int] = []

        async def is_settled() -> bool:
            if made.runner.is_disk_failing and not asked:
                # As many as may be in memory, and then no more.
                asked.append(made.asker.asked.total())
                await made.thread.call(set_pages(1_000_000))
            return (await made.now(batch)).is_settled

        await made.run_until(is_settled)
        assert asked[0] < 200
        return await made.now(batch)

    assert asyncio.run(run()).completed == 200
    assert set(made.asker.asked.values()) == {1}
    made.thread.close()


@pytest.mark.parametrize("number", [ENOENT, EACCES, ESTALE, ENOTCONN, ETIMEDOUT])
def test_an_input_that_is_away_pauses_its_batch_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Guards a night of work: a folder that is away for a moment is no answer to a line."""
    monkeypatch.setattr(limits, "TROUBLE_S", 0.02)
    made = bench(tmp_path)
    away: set[Path] = set()
    opened = Path.open

    def open_unless_away(path: Path, *words: Any, **options: Any) -> Any:
        if path in away:
            raise OSError(number, os.strerror(number))
        return opened(path, *words, **options)

    monkeypatch.setattr(Path, "open", open_unless_away)

    async def run() -> tuple[StoredBatch, StoredBatch]:
        batch, other = await made.begin("a", 30), await made.begin("b", 30)
        away.add(made.thread.store.files.path_of(batch.input_file_id))
        await made.run_to_end(other)
        before = await made.now(batch)
        away.clear()
        made.runner = LineRunner(made.thread, made.asker, Allowances((), SystemClock()))
        made.runner.begin(batch)
        await made.run_to_end(batch)
        return before, await made.now(batch)

    before, after = asyncio.run(run())
    assert (before.completed, before.failed) == (0, 0)
    assert (after.completed, after.failed) == (30, 0)
    assert set(made.asker.asked.values()) == {1}
    made.thread.close()


def test_a_batch_whose_input_is_back_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the pause: it is told once, and ends by itself."""
    monkeypatch.setattr(limits, "TROUBLE_S", 0.02)
    made = bench(tmp_path)

    async def run() -> StoredBatch:
        batch = await made.begin("a", 30)
        path = made.thread.store.files.path_of(batch.input_file_id)
        path.rename(tmp_path / "away")

        async def is_told() -> bool:
            return "pauses until its input can be read" in caplog.text

        async def is_settled() -> bool:
            if await is_told() and not path.exists():
                (tmp_path / "away").rename(path)
            return (await made.now(batch)).is_settled

        await made.run_until(is_settled)
        return await made.now(batch)

    assert asyncio.run(run()).completed == 30
    assert caplog.text.count("pauses until") == 1
    made.thread.close()
