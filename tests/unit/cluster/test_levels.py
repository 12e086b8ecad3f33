"""What replicas report, added up: levels of those that are there, sums of all that ever were."""

from dataclasses import fields, replace

import pytest

from jitney.cluster.levels import Levels
from jitney.cluster.replica_messages import State
from jitney.core.backend import Traits
from jitney.core.cost import Fit
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Snapshot
from jitney.engine.stats import Statistics

SETTINGS = SchedulerSettings(model_len_max=512, max_num_seqs=8)
TRAITS = Traits(name="t", slots_max=4, kv_tokens=1000, model_len_max=512, batch_invariant=True)
SNAPSHOT = Snapshot(
    running_count=1,
    prefilling_count=2,
    waiting_count=3,
    paused_count=4,
    waiting_tokens=5,
    prefill_left=6,
    deferred_count=7,
    cached_count=8,
    kv_tokens=9,
    kv_used=10,
    kv_cached=11,
    slot_count=12,
    fit=Fit(0.1, None),
    prefill_token_s=0.01,
    counters={"kv_full": 2},
)
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
    assert len(LEVELS) == 12
    levels.take("a", State(SNAPSHOT, {}))
    levels.take(
        "b", State(replace(SNAPSHOT, running_count=20, counters={"kv_full": 1, "x": 1}), {})
    )
    snapshot = levels.snapshot()
    added = {name: getattr(snapshot, name) for name in LEVELS}
    assert added == {name: 2 * getattr(SNAPSHOT, name) for name in LEVELS} | {"running_count": 21}
    assert snapshot.counters == {"kv_full": 3, "x": 1}
    assert (snapshot.fit, snapshot.prefill_token_s) == (SNAPSHOT.fit, SNAPSHOT.prefill_token_s)


def test_a_state_replaces_the_one_before(levels: Levels, counted: Statistics) -> None:
    levels.take("a", State(SNAPSHOT, SUMS))
    levels.take("a", State(replace(SNAPSHOT, running_count=0), SUMS | {"batches": 4.0}))
    assert levels.snapshot().running_count == 0
    assert levels.totals(counted).batches == 4


def test_the_levels_of_a_lost_replica_go_and_its_sums_stay(
    levels: Levels, counted: Statistics
) -> None:
    """Guards counters of a monitor: they never fall."""
    levels.take("a", State(SNAPSHOT, SUMS))
    levels.take("b", State(SNAPSHOT, SUMS))
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
    levels.take("a", State(SNAPSHOT, SUMS))
    levels.lose("a")
    levels.lose("a")
    levels.lose("unknown")
    assert levels.totals(counted).batches == 3


def test_requests_are_those_that_the_fleet_counted(levels: Levels, counted: Statistics) -> None:
    """Guards against counting twice: a request that moved was accepted by two engines."""
    levels.take("a", State(SNAPSHOT, SUMS))
    totals = levels.totals(counted)
    assert (totals.accepted, totals.started_at) == (5, 1.0)
    assert isinstance(totals.completion_tokens, int)
    assert isinstance(totals.prefill_s, float)
    assert (counted.batches, counted.completion_tokens) == (0, 0), "the count itself stays"


def test_a_replica_that_was_only_silent_counts_once(levels: Levels, counted: Statistics) -> None:
    """Guards counters: it comes back under its name, with the sums of its whole life."""
    for _ in range(2):
        levels.take("a", State(SNAPSHOT, SUMS))
        levels.lose("a")
    levels.take("a", State(SNAPSHOT, SUMS))
    assert levels.totals(counted).batches == 3
