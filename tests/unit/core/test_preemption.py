"""Who makes room: nobody in vain, and no elder for who came later."""

from dataclasses import replace

from jitney.core.request import Priority
from jitney.core.scheduler_settings import Mix, Policy
from tests.unit.core.schedulers import TRAITS, live, losses, runs, scheduler, submit, turn


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


def test_an_elder_keeps_its_memory_under_priority() -> None:
    """Guards a low class that has waited its time: each of a higher class took its memory again."""
    traits = replace(TRAITS, kv_tokens=60)
    for now, loser in ((10.0, "old"), (40.0, "new")):
        one = scheduler(8, traits, policy=Policy.PRIORITY, watermark=0.0)
        one.submit(live("old", 20, max_tokens=40, priority=Priority.LOW), 0.0)
        one.submit(live("new", 20, max_tokens=40, priority=Priority.HIGH), 5.0)
        lost = [loss for _ in range(25) for loss in losses(turn(one, now)[1])]
        assert [name for name, _, _ in lost] == [loser]
