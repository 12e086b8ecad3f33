"""Tests of `batches.allowances`: who may begin a line, with a real store and a runner."""

import logging
import sqlite3
from pathlib import Path

import pytest

from jitney.config import Key
from jitney.engine.answer import Usage
from jitney.server.batches import limits
from jitney.server.batches.allowances import DAY_S, Allowances
from jitney.server.batches.database import NAME
from jitney.server.batches.store import BatchStore
from tests.clock_for_tests import HandClock
from tests.unit.server.batches.conftest import OpenBench
from tests.unit.server.batches.store_for_tests import begun, result

VERSION_1 = Path(__file__).with_name("version_1.sql")


def allowances(clock: HandClock, **per_day: float | None) -> Allowances:
    return Allowances(
        (
            Key(name=name, secret=f"secret-of-{name}", batch_tokens_per_day=each)
            for name, each in per_day.items()
        ),
        clock,
    )


def spend(counted: Allowances, owner: str, tokens: int) -> None:
    counted.spend(owner, Usage(prompt_count=tokens - 1, cached_count=1, completion_count=1))


def stored(folder: Path) -> dict[str, float]:
    """What the next process finds."""
    store = BatchStore(folder)
    store.close()
    return dict(store.batches.used_at_open)


def test_what_was_used_comes_back_evenly_and_not_twice() -> None:
    """Guards both sides of a limit: a day's worth in a day, and never more than that at once."""
    clock = HandClock()
    counted = allowances(clock, a=100)
    spend(counted, "a", 150)
    assert not counted.has_left("a")
    clock.at = 0.5 * DAY_S
    assert counted.used() == {"a": 100.0}
    assert (counted.has_left("a"), counted.used_up_count) == (False, 1)
    clock.at = 0.51 * DAY_S
    assert (counted.has_left("a"), counted.used_up_count) == (True, 0)
    clock.at = 30 * DAY_S
    assert counted.used() == {"a": 0.0}
    spend(counted, "a", 100)
    assert not counted.has_left("a"), "a month without work gives a day's worth"


def test_keys_without_a_limit_are_not_counted() -> None:
    """Guards `jitney batch run`, servers without keys, and keys that have no rate of tokens."""
    counted = allowances(HandClock(), a=None)
    for owner in ("", "a"):
        spend(counted, owner, 10**12)
        assert counted.has_left(owner)
    assert counted.used() == {}


def test_the_wait_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Guards the log: a batch that goes on line by line would fill it."""
    clock = HandClock()
    counted = allowances(clock, a=100)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            spend(counted, "a", 100)
            assert not counted.has_left("a")
            # Until a line may begin, and no longer.
            clock.at += DAY_S * (counted.used()["a"] - 99) / 100
            assert counted.has_left("a")
        assert len(caplog.messages) == 1
        clock.at += DAY_S
        assert counted.has_left("a")
        spend(counted, "a", 100)
        assert not counted.has_left("a")
    assert len(caplog.messages) == 2, "another day"
    assert "The batches of a wait: their 100 tokens a day are used up" in caplog.messages[0]


def test_a_lower_limit_is_not_paid_for_weeks() -> None:
    """Guards a key whose limit was lowered: it would wait until all of the old one came back."""
    counted = allowances(HandClock(), a=100, b=100)
    counted.adopt({"a": 1e9, "b": 120.0, "gone": 5.0})
    days = limits.ALLOWANCE_DAYS_MAX
    assert counted.used() == {"a": days * 100.0, "b": 120.0}
    counted.adopt({"b": 3.0})
    assert counted.used()["b"] == 120.0, "what was counted here is newer"


@pytest.mark.anyio
async def test_what_comes_back_is_noted_without_a_line(
    open_bench: OpenBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a key that rested for days: after a restart it would wait for what it has paid."""
    monkeypatch.setattr(limits, "ALLOWANCE_S", 0.01)
    clock = HandClock()
    bench = open_bench(allowances=allowances(clock, a=100))
    await bench.run_to_end(await bench.begin("a", 30))

    async def is_noted(used: dict[str, float]) -> bool:
        return rows(tmp_path) == used

    clock.at += 0.1 * DAY_S
    await bench.run_until(lambda: is_noted({"a": 20.0}))
    clock.at += DAY_S
    await bench.run_until(lambda: is_noted({}))
    bench.thread.close()
    assert stored(tmp_path) == {}


def rows(folder: Path) -> dict[str, float]:
    """What the store has, while it is open."""
    connection = sqlite3.connect(folder / NAME)
    try:
        return dict(connection.execute("SELECT owner, used FROM allowances").fetchall())
    finally:
        connection.close()


def test_tokens_are_noted_with_their_results_or_not_at_all(tmp_path: Path) -> None:
    """Guards a kill between two writes: results would be kept that nobody paid for."""
    store = BatchStore(tmp_path)
    batch = begun(store, 2, "a")
    store.batches.settle([result(batch, 1)], {"a": 5.0})
    broken = result(batch, 2)
    object.__setattr__(broken, "reply", None)
    with pytest.raises(sqlite3.IntegrityError):
        store.batches.settle([broken], {"a": 10.0})
    store.close()
    assert stored(tmp_path) == {"a": 5.0}


def test_an_older_store_keeps_its_work_and_counts_from_now_on(tmp_path: Path) -> None:
    """Guards whoever updates: a store of the first version goes on, has room for the count, and the
    folder gets its mark."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file-0123456789abcdef0123456789abcdef").write_bytes(b"a\nb\n")
    connection = sqlite3.connect(tmp_path / NAME)
    connection.executescript(VERSION_1.read_text(encoding="utf-8"))
    connection.close()
    store = BatchStore(tmp_path)
    (batch,) = store.batches.live()
    assert (batch.id, batch.completed, batch.total) == ("batch_1", 1, 2)
    assert [each.number for each in store.batches.pending_lines(batch.serial, 0, 10)] == [2]
    store.batches.settle([result(batch, 2)], {"a": 7.0})
    store.close()
    assert (tmp_path / "files" / "store").exists()
    assert stored(tmp_path) == {"a": 7.0}
