"""What replicas report, added up: levels of those that are there, sums of all that ever were."""

from dataclasses import fields, replace

import pytest

from jitney.core.backend import Traits
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Snapshot
from jitney.engine.stats import Statistics
from jitney_cluster.levels import LOST_KEPT_MAX, Levels, sums_of
from jitney_cluster.replica_messages import State
from tests.snapshots_for_tests import FILLED

SETTINGS = SchedulerSettings(model_len_max=512, max_num_seqs=8)
TRAITS = Traits(name="t", slots_max=4, kv_tokens=1000, model_len_max=512, batch_invariant=True)
LEVELS = [each.name for each in fields(Snapshot) if each.type in ("int", int)]
SUMS = {"completion_tokens": 10.0, "batches": 3.0, "prefill_s": 0.25, "accepted": 99.0}


@pytest.fixture
def levels() -> Levels:
    return Levels(SETTINGS, TRAITS)


@pytest.fixture
def counted(levels: Levels) -> Statistics:
    """The requests as the fleet counted them."""
    return Statistics(1.0, levels.snapshot(), accepted=5)


def test_without_replicas_there_is_room_and_nothing_in_it(levels: Levels) -> None:
    snapshot = levels.snapshot()
    assert (snapshot.slot_count, snapshot.kv_tokens) == (8, 1000)
    assert snapshot.live_count == snapshot.kv_used == 0
    assert not snapshot.is_work_due


def test_every_level_is_added_up(levels: Levels) -> None:
    """Guards new fields of a snapshot: a level that is not listed would be that of one replica."""
    assert len(LEVELS) == 15
    levels.take("a", State(FILLED, {}))
    levels.take("b", State(replace(FILLED, running_count=20, counters={"kv_full": 1, "x": 1}), {}))
    snapshot = levels.snapshot()
    added = {name: getattr(snapshot, name) for name in LEVELS}
    assert added == {name: 2 * getattr(FILLED, name) for name in LEVELS} | {"running_count": 21}
    assert snapshot.counters == {"kv_full": 3, "x": 1}
    assert (snapshot.fit, snapshot.prefill_token_s) == (FILLED.fit, FILLED.prefill_token_s)


def test_a_state_replaces_the_one_before(levels: Levels, counted: Statistics) -> None:
    levels.take("a", State(FILLED, SUMS))
    levels.take("a", State(replace(FILLED, running_count=0), SUMS | {"batches": 4.0}))
    assert levels.snapshot().running_count == 0
    assert levels.totals(counted).batches == 4


def test_the_levels_of_a_lost_replica_go_and_its_sums_stay(
    levels: Levels, counted: Statistics
) -> None:
    """Guards counters of a monitor: they never fall."""
    levels.take("a", State(FILLED, SUMS))
    levels.take("b", State(FILLED, SUMS))
    before = levels.totals(counted)
    levels.lose("a")
    after = levels.totals(counted)
    assert (before.batches, before.prefill_s) == (after.batches, after.prefill_s) == (6, 0.5)
    assert levels.snapshot().running_count == after.snapshot.running_count == 1
    assert list(levels.replicas) == ["b"]
    levels.lose("b")
    assert levels.totals(counted).completion_tokens == 20
    assert levels.snapshot() == Levels(SETTINGS, TRAITS).snapshot()


def test_a_replica_is_lost_once(levels: Levels, counted: Statistics) -> None:
    levels.take("a", State(FILLED, SUMS))
    levels.lose("a")
    levels.lose("a")
    levels.lose("unknown")
    assert levels.totals(counted).batches == 3


def test_requests_are_those_that_the_fleet_counted(levels: Levels, counted: Statistics) -> None:
    """Guards against counting twice: a request that moved was accepted by two engines."""
    levels.take("a", State(FILLED, SUMS))
    totals = levels.totals(counted)
    assert (totals.accepted, totals.started_at) == (5, 1.0)
    assert isinstance(totals.completion_tokens, int)
    assert isinstance(totals.prefill_s, float)
    assert (counted.batches, counted.completion_tokens) == (0, 0), "the count itself stays"


def test_a_replica_that_was_only_silent_counts_once(levels: Levels, counted: Statistics) -> None:
    """Guards counters: it comes back under its name, with the sums of its whole life."""
    for _ in range(2):
        levels.take("a", State(FILLED, SUMS))
        levels.lose("a")
    levels.take("a", State(FILLED, SUMS))
    assert levels.totals(counted).batches == 3


def test_counters_of_the_schedulers_never_fall(levels: Levels, counted: Statistics) -> None:
    """Guards events and preemptions: they are sums, though a snapshot has them."""
    there = sums_of(Statistics(0.0, FILLED, batches=2, preempted={"recomputed": 5, "paused": 1}))
    levels.take("a", State(FILLED, there))
    levels.take("b", State(FILLED, there))
    before = levels.totals(counted)
    levels.lose("a")
    after = levels.totals(counted)
    for totals in (before, after):
        assert totals.snapshot.counters == {"kv_full": 4}
        assert (totals.preempted["recomputed"], totals.preempted["paused"]) == (10, 2)
        assert totals.preempted_count == 10
    assert levels.snapshot().counters == {"kv_full": 2}


def test_however_many_replicas_come_and_go_their_sum_stays(
    levels: Levels, counted: Statistics
) -> None:
    """Guards memory where replicas are replaced for years: each new one has a new name."""
    count = 3 * LOST_KEPT_MAX
    for number in range(count):
        levels.take(f"r{number}", State(FILLED, SUMS))
        levels.lose(f"r{number}")
    assert levels.totals(counted).batches == 3 * count
    assert len(levels._reported.lost) == LOST_KEPT_MAX
