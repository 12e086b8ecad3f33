"""Replicas as an ingress sees them: levels of those that are there, sums of all that ever were,
rates, stalls, and details that are there when asked for."""

import asyncio
from dataclasses import fields, replace

import pytest

from jitney.core.backend import Traits
from jitney.core.request import Priority, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, SlotState, SlotView, Snapshot, Stretch, Waiting, WaitReason
from jitney.engine.stats import Statistics
from jitney_cluster import overview as module
from jitney_cluster.overview import LOST_NAMES_MAX, LOST_S, RATE_S, FleetOverview, sums_of
from jitney_cluster.replica_engine import SLOTS_MAX, STRETCHES_MAX, bounded
from jitney_cluster.replica_messages import ReplicaState
from tests.clock_for_tests import HandClock
from tests.snapshots_for_tests import FILLED, IDLE
from tests.unit.cluster.conftest import make_cluster, make_request, until

SETTINGS = SchedulerSettings(model_len_max=512, max_num_seqs=8)
TRAITS = Traits(name="t", slots_max=4, kv_tokens=1000, model_len_max=512, batch_invariant=True)
BUSY = replace(IDLE, running_count=2)
NOTHING = Detail(0.0, (), (), ())
LEVELS = [each.name for each in fields(Snapshot) if each.type in ("int", int)]
SUMS = {"completion_tokens": 10.0, "batches": 3.0, "prefill_s": 0.25, "accepted": 99.0}


class Seen:
    """An overview, its clock, and whom it asks."""

    def __init__(self, *names: str) -> None:
        self.clock = HandClock(100.0)
        self.asked: list[int] = []
        self.names = list(names)
        self.overview = FleetOverview(SETTINGS, TRAITS, self._ask, self.clock)
        for name in names:
            self.state(name)

    def _ask(self, characters_max: int) -> list[str]:
        self.asked.append(characters_max)
        return self.names

    def state(self, name: str, snapshot: Snapshot = IDLE, **sums: float) -> None:
        self.overview.take(name, ReplicaState(snapshot, sums))


async def test_rates_are_those_of_the_last_seconds() -> None:
    """Guards the figures of a replica: an hour of work before counts for nothing."""
    seen = Seen()
    seen.state("a", completion_tokens=5000.0, prefill_tokens=100.0)
    assert seen.overview.views()[0].tokens_per_s == 0.0, "one moment has no rate"
    for number in range(1, 41):
        seen.clock.at += 0.5
        made = 5000.0 + min(number, 20) * 10
        seen.state("a", completion_tokens=made, prefill_tokens=100.0 + number)
        if number == 20:
            (view,) = seen.overview.views()
            assert view.tokens_per_s == pytest.approx(20.0)
            assert view.prefill_tokens_per_s == pytest.approx(2.0)
    (view,) = seen.overview.views()
    assert view.tokens_per_s == 0.0, "it has made none since"
    assert view.completion_tokens == 5200
    assert len(seen.overview._connected["a"].marks) <= RATE_S / 0.5 + 2


async def test_a_fleet_that_works_without_a_pause_is_not_stalled() -> None:
    """Guards /health: an ingress sees no ticks, only that replicas have done some."""
    seen = Seen()
    for number in range(100):
        seen.state("a", BUSY, batches=float(number))
        seen.state("b", BUSY, batches=7.0)
        seen.clock.at += 1.0
    assert seen.overview.stalled_s() == pytest.approx(1.0), "one of the two works"
    seen.overview.lose("a")
    assert seen.overview.stalled_s() == pytest.approx(100.0), "the other one is stuck"
    seen.state("b", IDLE, batches=7.0)
    assert seen.overview.stalled_s() == 0.0
    seen.clock.at += 50.0
    seen.state("b", BUSY, batches=7.0)
    seen.clock.at += 2.0
    assert seen.overview.stalled_s() == pytest.approx(2.0), "its work has just come"


async def test_a_look_is_answered_when_all_have_answered() -> None:
    seen = Seen("a", "b")
    looking = [asyncio.wrap_future(seen.overview.look(20)) for _ in range(3)]
    await until(lambda: seen.asked)
    assert seen.asked == [20], "they look together"
    seen.overview.take("a", ReplicaState(IDLE, {}, detail=NOTHING))
    await asyncio.sleep(0)
    assert not any(each.done() for each in looking)
    seen.clock.at += 5.0
    seen.overview.take("b", ReplicaState(IDLE, {}, detail=NOTHING))
    details = await asyncio.gather(*looking)
    assert {each.at for each in details} == {100.0}, "the oldest of them"
    again = asyncio.wrap_future(seen.overview.look(20))
    await until(lambda: len(seen.asked) == 2)
    seen.overview.take("a", ReplicaState(IDLE, {}, detail=NOTHING))
    seen.overview.lose("b")
    await again
    assert [each.name for each in seen.overview.views()] == ["a"]


async def test_a_look_does_not_wait_for_a_replica_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the page: one long pass must not hide the other replicas."""
    monkeypatch.setattr(module, "LOOK_S_MAX", 0.01)
    seen = Seen("a", "stuck")
    looking = asyncio.wrap_future(seen.overview.look(0))
    await until(lambda: seen.asked)
    seen.overview.take("a", ReplicaState(IDLE, {}, detail=NOTHING))
    await looking
    shown = {each.name: each.detail for each in seen.overview.views()}
    assert shown == {"a": replace(NOTHING, at=100.0), "stuck": None}
    seen.names = []
    assert (await asyncio.wrap_future(seen.overview.look(0))).at == 100.0, "nobody is there"


async def test_times_of_a_replica_become_those_of_this_clock() -> None:
    """Guards the queue's waits: clocks of two machines start anywhere."""
    seen = Seen("a")
    waiting = Waiting(
        RequestId("q"), 0, 7003.0, 9, Priority.NORMAL, ran_before=False, reason=WaitReason.SLOT
    )
    seen.overview.take("a", ReplicaState(BUSY, {}, detail=Detail(7005.0, (), (), (waiting,))))
    (view,) = seen.overview.views()
    assert view.detail is not None
    assert view.detail.at == 100.0
    assert view.detail.waiting == (replace(waiting, accepted_at=98.0),)
    assert view.snapshot == BUSY, "of the same moment"


def test_what_is_shown_is_bounded() -> None:
    """Guards the connection that carries the tokens."""
    slots = tuple(
        SlotView(number, SlotState.GENERATING, RequestId(f"q{number}"), 0, 5)
        for number in range(SLOTS_MAX + 100)
    )
    tails = {RequestId(f"q{number}"): ("text",) for number in range(SLOTS_MAX + 200)}
    stretches = tuple(Stretch(0, 1, (number,)) for number in range(STRETCHES_MAX + 1))
    shown = bounded(Detail(0.0, slots, stretches, (), tails))
    assert len(shown.slots) == len(shown.tails) == SLOTS_MAX
    assert len(shown.stretches) == STRETCHES_MAX


async def test_replicas_show_their_slots_when_asked() -> None:
    """Guards the whole way: over the connection, from each engine to the views of the fleet."""
    async with make_cluster(2) as cluster:
        fleet = cluster.fleet
        prompt = "a system prompt that all of them share " * 3
        requests = [make_request(f"{prompt}{at}", max_tokens=300) for at in range(4)]
        handles = [fleet.send(request) for request in requests]
        await until(lambda: len(fleet.replica_views()) == 2)
        assert [each.detail for each in fleet.replica_views()] == [None, None]
        await until(lambda: all(live.token_count for live in fleet._live.values()))
        detail = await asyncio.wrap_future(fleet.look(30))
        assert detail.slots == ()
        views = {each.name: each.detail for each in fleet.replica_views()}
        assert set(views) == set(cluster.dispatch.replicas)
        assert all(each.slots for each in views.values())
        assert {slot.prefix for each in views.values() for slot in each.slots} != {None}
        for handle in handles:
            await handle.result_async()
        # Those that ended are cached prefixes, and texts are of live requests only.
        await asyncio.wrap_future(fleet.look(30))
        after = [slot for each in fleet.replica_views() for slot in each.detail.slots]
        assert {each.state for each in after} == {SlotState.CACHED}
        assert len({each.prefix for each in after}) == 1, "they begin alike"
        assert [each.detail.tails for each in fleet.replica_views()] == [{}, {}]


async def test_a_lost_replica_is_named_for_a_while_only() -> None:
    """Guards one that was only silent: it comes back when it is sent a request."""
    seen = Seen("a")
    seen.overview.lose("a")
    assert seen.overview.lost() == ("a",)
    seen.clock.at += LOST_S
    assert seen.overview.lost() == ()
    seen.overview.lose("a")
    seen.state("a")
    assert seen.overview.lost() == ()


async def test_without_replicas_there_is_room_and_nothing_in_it() -> None:
    snapshot = Seen().overview.snapshot()
    assert (snapshot.slot_count, snapshot.kv_tokens) == (8, 1000)
    assert snapshot.unfinished_count == snapshot.kv_used == 0
    assert not snapshot.is_work_due


async def test_every_level_is_added_up() -> None:
    """Guards new fields of a snapshot: a level that is not added would be that of one replica."""
    assert len(LEVELS) == 15
    seen = Seen()
    seen.state("a", FILLED)
    seen.state("b", replace(FILLED, running_count=20, counters={"kv_full": 1, "x": 1}))
    snapshot = seen.overview.snapshot()
    added = {name: getattr(snapshot, name) for name in LEVELS}
    assert added == {name: 2 * getattr(FILLED, name) for name in LEVELS} | {"running_count": 21}
    assert snapshot.counters == {"kv_full": 3, "x": 1}
    assert (snapshot.fit, snapshot.prefill_token_s) == (FILLED.fit, FILLED.prefill_token_s)
    seen.state("b", replace(FILLED, running_count=0))
    assert seen.overview.snapshot().running_count == 1, "a state replaces the one before"


async def test_the_levels_of_a_lost_replica_go_and_its_sums_stay() -> None:
    """Guards counters of a monitor: they never fall. Events and preemptions are sums too, though a
    snapshot has them."""
    seen = Seen()
    overview = seen.overview
    counted = Statistics(0.0, FILLED, batches=2, preempted={"recomputed": 5, "paused": 1})
    sums = sums_of(counted) | SUMS
    for name in ("a", "b"):
        seen.state(name, FILLED, **sums)
    for lost in ("", "a", "a", "unknown"):
        overview.lose(lost)
        totals = overview.totals()
        assert (totals.batches, totals.prefill_s) == (6, 0.5)
        assert totals.snapshot.counters == {"kv_full": 4}
        assert (totals.preempted["recomputed"], totals.preempted["paused"]) == (10, 2)
        assert totals.preempted_count == 10
    assert overview.snapshot().running_count == totals.snapshot.running_count == 1
    assert overview.snapshot().counters == {"kv_full": 2}
    overview.lose("b")
    assert overview.totals().completion_tokens == 20
    assert overview.snapshot() == Seen().overview.snapshot()


async def test_requests_are_those_that_the_fleet_counted() -> None:
    """Guards against counting twice: a request that moved was accepted by two engines."""
    seen = Seen()
    seen.overview.statistics.accepted = 5
    seen.state("a", FILLED, **SUMS)
    totals = seen.overview.totals()
    assert (totals.accepted, totals.started_at) == (5, 100.0)
    assert isinstance(totals.completion_tokens, int)
    assert isinstance(totals.prefill_s, float)
    assert seen.overview.statistics.batches == 0, "the count itself stays"


async def test_a_replica_that_was_only_silent_counts_once() -> None:
    """Guards counters: it comes back under its name, with the sums of its whole life."""
    seen = Seen()
    for _ in range(2):
        seen.state("a", FILLED, **SUMS)
        seen.overview.lose("a")
    seen.state("a", FILLED, **SUMS)
    assert seen.overview.totals().batches == 3


async def test_however_many_replicas_come_and_go_their_sum_stays() -> None:
    """Guards memory where replicas are replaced for years: each new one has a new name."""
    seen, count = Seen(), 3 * LOST_NAMES_MAX
    for number in range(count):
        seen.state(f"r{number}", FILLED, **SUMS)
        seen.overview.lose(f"r{number}")
    assert seen.overview.totals().batches == 3 * count
    assert len(seen.overview._sums) == LOST_NAMES_MAX + 1, "and one for the others"
