"""Who makes room: nobody in vain, and no elder for who came later."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from jitney.core.ledger import Ledger
from jitney.core.request import Priority, RequestId
from jitney.core.scheduler_settings import Mix, Policy
from jitney.core.sequence import Sequence
from tests.unit.core.schedulers import (
    TRAITS,
    applied,
    behind,
    live,
    losses,
    runs,
    scheduler,
    submit,
    turn,
)

MANY = 60
"""Sequences that run while one more wants memory."""

LOOKS_MAX = 10
"""Looks at each of them in a tick."""


def test_nobody_is_displaced_for_one_that_has_no_room_all_the_same() -> None:
    """Guards work that was displaced in vain: its slot was free then, and its memory too small."""
    for slots in (2, 8):
        one = scheduler(slots, replace(TRAITS, kv_tokens=120), policy=Policy.PRIORITY)
        submit(one, live("a", 80, priority=Priority.HIGH), live("b", 10, priority=Priority.LOW))
        turn(one)
        one.submit(live("c", 60, priority=Priority.HIGH), 0.0)
        assert not losses(turn(one)[1])
        assert runs(one) == {"a", "b"}
        one.submit(live("d", 25, priority=Priority.CRITICAL), 0.0)
        assert [name for name, _, _ in losses(turn(one)[1])] == ["b"]
        assert runs(one) == {"a", "d"}


def test_nobody_loses_memory_to_a_span_that_has_none_all_the_same() -> None:
    """Guards the juniors of a long prompt: one was preempted, and still the span had no room."""
    traits = replace(TRAITS, kv_tokens=78, slots_max=12)
    one = scheduler(12, traits, prefill_chunk=10, mix=Mix.DECODE_FIRST)
    submit(one, *(live(name, 3) for name in "abcdefghij"), live("p", 40), live("z", 3))
    members = [set(turn(one)[0]) for _ in range(3)]
    assert ["p" in each for each in members] == [True, True, False]
    assert one.counters["kv_full"] == 1
    assert "z" in runs(one)


def test_nothing_is_evicted_for_a_span_that_has_no_room_all_the_same() -> None:
    """Guards cached prefixes: all were evicted before it was known whether that is enough."""
    traits = replace(TRAITS, kv_tokens=88, slots_max=14)
    one = scheduler(12, traits, prefill_chunk=10, mix=Mix.DECODE_FIRST)
    one.submit(live("c", 3, max_tokens=2), 0.0)
    turn(one)
    turn(one)
    submit(one, *(live(name, 3) for name in "abdefghij"), live("p", 40))
    members = [set(turn(one)[0]) for _ in range(4)]
    assert ["p" in each for each in members] == [True, True, True, False]
    assert one.counters["kv_full"] == 1
    assert (one.counters["evicted"], one.snapshot().kv_cached) == (0, 4)


def test_a_suspect_takes_the_slot_of_a_suspect_and_of_nobody_else() -> None:
    """Guards the background: another one was displaced first, and then the suspect as well."""
    one = scheduler(2)
    one.submit(live("a"), 0.0)
    turn(one)
    one.pause(RequestId("a"), 0.0)
    submit(one, behind("s"), behind("x"))
    turn(one)
    suspects = [*one._registry.paused, one._registry.running[0]]
    for each in suspects:
        each.history.failed_count = 2
        each.history.failed_known = 90
    one.resume(RequestId("a"), 0.0)
    lost = [loss for _ in range(2) for loss in losses(turn(one)[1])]
    assert [name for name, _, _ in lost] == ["s"]
    assert runs(one) == {"a", "x"}


def test_an_elder_keeps_its_memory_under_priority() -> None:
    """Guards a low class that has waited its time: each of a higher class took its memory again."""
    traits = replace(TRAITS, kv_tokens=60)
    for now, loser in ((10.0, "old"), (40.0, "new")):
        one = scheduler(8, traits, policy=Policy.PRIORITY, watermark=0.0)
        one.submit(live("old", 20, max_tokens=40, priority=Priority.LOW), 0.0)
        one.submit(live("new", 20, max_tokens=40, priority=Priority.HIGH), 5.0)
        lost = [loss for _ in range(25) for loss in losses(turn(one, now)[1])]
        assert [name for name, _, _ in lost] == [loser]


@pytest.mark.parametrize(("prompt", "has_room"), [(600, False), (480, True)])
def test_who_makes_room_is_found_with_a_few_looks_at_each(
    monkeypatch: pytest.MonkeyPatch, prompt: int, *, has_room: bool
) -> None:
    """Guards all streams: after each victim all others were looked at again, in every tick."""
    traits = replace(TRAITS, kv_tokens=1000, slots_max=2 * MANY, model_len_max=1000)
    one = scheduler(2 * MANY, traits, policy=Policy.PRIORITY, watermark=0.0)
    first = live("a", 500, priority=Priority.CRITICAL)
    low = [live(f"{n}", (n,), priority=Priority.LOW) for n in range(MANY)]
    submit(one, first, *low)
    turn(one)
    turn(one)
    assert len(runs(one)) == MANY + 1
    one.submit(live("n", prompt, priority=Priority.CRITICAL), 0.0)
    looks = _count_looks(monkeypatch)
    batch = one.plan(0.0)
    assert batch is not None
    assert len(looks) < LOOKS_MAX * MANY, len(looks)
    monkeypatch.undo()
    lost_count = len(losses(applied(one, batch)))
    assert lost_count > MANY // 2 if has_room else lost_count == 0


def _count_looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each time that a sequence's state or its need of memory is looked up."""
    looks: list[None] = []
    growth = Ledger.growth
    is_in_flight: Callable[[Sequence], bool] = vars(Sequence)["is_in_flight"].fget

    def count_growth(self: Ledger, slot: int, length: int) -> int:
        looks.append(None)
        return growth(self, slot, length)

    def count_state(self: Sequence) -> bool:
        looks.append(None)
        return is_in_flight(self)

    monkeypatch.setattr(Ledger, "growth", count_growth)
    monkeypatch.setattr(Sequence, "is_in_flight", property(count_state))
    return looks
