"""Replicas as an ingress sees them: rates, stalls, and details that are there when asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from jitney.core.backend import Traits
from jitney.core.request import Priority, Request, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import (
    Detail,
    SlotState,
    SlotView,
    Snapshot,
    Stretch,
    Waiting,
    WaitReason,
)
from jitney_cluster import overview as module
from jitney_cluster.overview import LOST_S, RATE_S, FleetOverview
from jitney_cluster.replica_messages import ReplicaDetail, State
from jitney_cluster.showing import SLOTS_MAX, STRETCHES_MAX, bounded
from tests.snapshots_for_tests import IDLE
from tests.unit.cluster.conftest import HandClock

MakeRequest = Callable[..., Request]
MakeCluster = Callable[..., Any]  # Any: the Cluster of conftest.py
InLoop = Callable[[Callable[[], Awaitable[None]]], None]

SETTINGS = SchedulerSettings(model_len_max=512, max_num_seqs=8)
TRAITS = Traits(name="t", slots_max=4, kv_tokens=1000, model_len_max=512, batch_invariant=True)
BUSY = replace(IDLE, running_count=2)
NOTHING = Detail(0.0, (), (), ())


class Seen:
    """An overview, its clock, and whom it asks."""

    def __init__(self) -> None:
        self.clock = HandClock(100.0)
        self.asked: list[int] = []
        self.names: list[str] = []
        self.overview = FleetOverview(SETTINGS, TRAITS, self._ask, self.clock)

    def _ask(self, characters_max: int) -> list[str]:
        self.asked.append(characters_max)
        return self.names

    def state(self, name: str, snapshot: Snapshot = IDLE, **sums: float) -> None:
        self.overview.take(name, State(snapshot, sums))


def test_rates_are_those_of_the_last_seconds(in_loop: InLoop) -> None:
    """Guards the figures of a replica: an hour of work before counts for nothing."""

    async def test() -> None:
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
        assert len(seen.overview._seen["a"].marks) <= RATE_S / 0.5 + 2

    in_loop(test)


def test_a_fleet_that_works_without_a_pause_is_not_stalled(in_loop: InLoop) -> None:
    """Guards /health: an ingress sees no ticks, only that replicas have done some."""

    async def test() -> None:
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

    in_loop(test)


def test_a_look_is_answered_when_all_have_answered(in_loop: InLoop) -> None:
    async def test() -> None:
        seen = Seen()
        seen.names = ["a", "b"]
        for name in seen.names:
            seen.state(name)
        looking = [asyncio.wrap_future(seen.overview.look(20)) for _ in range(3)]
        await asyncio.sleep(0)
        assert seen.asked == [20], "they look together"
        seen.overview.take("a", ReplicaDetail(NOTHING, IDLE))
        await asyncio.sleep(0)
        assert not any(each.done() for each in looking)
        seen.clock.at += 5.0
        seen.overview.take("b", ReplicaDetail(NOTHING, IDLE))
        details = await asyncio.gather(*looking)
        assert {each.at for each in details} == {100.0}, "the oldest of them"
        again = asyncio.wrap_future(seen.overview.look(20))
        await asyncio.sleep(0)
        assert len(seen.asked) == 2
        seen.overview.take("a", ReplicaDetail(NOTHING, IDLE))
        seen.overview.lose("b")
        await again
        assert [each.name for each in seen.overview.views()] == ["a"]

    in_loop(test)


def test_a_look_does_not_wait_for_a_replica_that_is_stuck(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the page: one long pass must not hide the other replicas."""
    monkeypatch.setattr(module, "LOOK_S_MAX", 0.01)

    async def test() -> None:
        seen = Seen()
        seen.names = ["a", "stuck"]
        for name in seen.names:
            seen.state(name)
        looking = asyncio.wrap_future(seen.overview.look(0))
        await asyncio.sleep(0)
        seen.overview.take("a", ReplicaDetail(NOTHING, IDLE))
        await looking
        shown = {each.name: each.detail for each in seen.overview.views()}
        assert shown == {"a": replace(NOTHING, at=100.0), "stuck": None}
        seen.names = []
        assert (await asyncio.wrap_future(seen.overview.look(0))).at == 100.0, "nobody is there"

    in_loop(test)


def test_times_of_a_replica_become_those_of_this_clock(in_loop: InLoop) -> None:
    """Guards the queue's waits: clocks of two machines start anywhere."""

    async def test() -> None:
        seen = Seen()
        seen.state("a")
        waiting = Waiting(
            RequestId("q"), 0, 7003.0, 9, Priority.NORMAL, ran_before=False, reason=WaitReason.SLOT
        )
        seen.overview.take("a", ReplicaDetail(Detail(7005.0, (), (), (waiting,)), BUSY))
        (view,) = seen.overview.views()
        assert view.detail is not None
        assert view.detail.at == 100.0
        assert view.detail.waiting == (replace(waiting, accepted_at=98.0),)
        assert view.snapshot == BUSY, "of the same moment"

    in_loop(test)


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


def test_replicas_show_their_slots_when_asked(
    make_cluster: MakeCluster, make_request: MakeRequest, in_loop: InLoop
) -> None:
    """Guards the whole way: over the connection, from each engine to the views of the fleet."""

    async def test() -> None:
        async with make_cluster(2) as cluster:
            fleet = cluster.fleet
            prompt = "a system prompt that all of them share " * 3
            requests = [make_request(f"{prompt}{at}", max_tokens=300) for at in range(4)]
            handles = [fleet.send(request) for request in requests]
            while len(fleet.replica_views()) < 2:  # noqa: ASYNC110, replicas tell it when they can
                await asyncio.sleep(0.01)
            assert [each.detail for each in fleet.replica_views()] == [None, None]
            while not all(  # noqa: ASYNC110, as above
                live.progress.token_count for live in fleet._live.values()
            ):
                await asyncio.sleep(0.01)
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

    in_loop(test)


def test_a_lost_replica_is_named_for_a_while_only(in_loop: InLoop) -> None:
    """Guards one that was only silent: it comes back when it is sent a request."""

    async def test() -> None:
        seen = Seen()
        seen.state("a")
        seen.overview.lose("a")
        assert seen.overview.lost() == ("a",)
        seen.clock.at += LOST_S
        assert seen.overview.lost() == ()
        seen.overview.lose("a")
        seen.state("a")
        assert seen.overview.lost() == ()

    in_loop(test)
