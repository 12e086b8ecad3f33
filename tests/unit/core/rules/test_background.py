"""Work that may wait: it sits behind live requests in the queue, in slots, in memory, in ticks."""

from dataclasses import replace
from typing import Any

import pytest

from jitney.core.counters import Counters
from jitney.core.events import FinishEvent, FinishReason, PreemptReason
from jitney.core.request import Priority, RequestId, Share
from jitney.core.rules.queue import WaitQueue
from jitney.core.rules.ranking import ranking_of
from jitney.core.scheduler_settings import Mix, Policy
from tests.unit.core.schedulers import (
    POLICIES,
    TRAITS,
    applied,
    behind,
    live,
    losses,
    made_background,
    members,
    names,
    planned,
    runs,
    scheduler,
    submit,
    turn,
)
from tests.unit.core.sequences import sequence


@pytest.mark.parametrize("policy", POLICIES)
def test_the_queue_has_them_behind_every_live_one_at_any_age(policy: Any) -> None:
    """Guards live requests under every policy: neither rank nor age lifts a background one over
    them. Within the background the rule of elders holds."""
    queue = WaitQueue(ranking_of(policy, Counters(), []), overtake_s=5.0)
    waiting = [
        made_background(sequence("z", accepted_at=0.0, priority=Priority.CRITICAL, tokens_max=1)),
        made_background(sequence("x", accepted_at=20.0)),
        sequence("b", accepted_at=19.0, tokens_max=900, priority=Priority.LOW),
        sequence("a", accepted_at=1.0, tokens_max=900, priority=Priority.LOW),
    ]
    for each in waiting:
        queue.add(each)
    assert [str(each.request.id) for each in queue.ordered(20.0)] == ["a", "b", "z", "x"]
    assert (queue.count, queue.live.count, queue.background.count) == (4, 2, 2)


def test_tokens_of_the_background_do_not_count_against_a_tenant() -> None:
    """Guards a tenant under `fair`: its batches must not put its live requests behind others."""
    one = scheduler(max_num_seqs=1, policy=Policy.FAIR)
    one.submit(behind("x", 50, tenant="busy"), 0.0)
    for _ in range(5):
        turn(one)
    # Neither was served anything, so their names decide.
    one.submit(live("b", tenant="other"), 1.0)
    one.submit(live("a", tenant="busy"), 2.0)
    turn(one, 2.0)
    assert runs(one) == {"a"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("enable_preemption", [True, False])
def test_a_live_one_takes_the_slot_and_gives_it_back(policy: Any, enable_preemption: bool) -> None:
    """Guards live requests under every policy; and what was computed, which stays cached."""
    one = scheduler(max_num_seqs=1, policy=policy, enable_preemption=enable_preemption)
    one.submit(behind("x", 40, priority=Priority.CRITICAL), 0.0)
    turn(one)
    turn(one)
    one.submit(live("a", max_tokens=2, priority=Priority.LOW), 0.0)
    spans, events = turn(one)
    assert spans == {"a": 3}
    assert losses(events) == [("x", PreemptReason.DISPLACED, "a")]
    assert members(one) == {"a"}
    spans, _ = turn(one)
    assert spans == {"x": 1}, "nothing is computed twice"


def test_who_has_made_no_token_is_displaced_too() -> None:
    """Guards the first tick after a long prompt of the background began: it is not waited for."""
    one = scheduler(max_num_seqs=1, prefill_chunk=8)
    one.submit(behind("x", 60), 0.0)
    turn(one)
    one.submit(live("a"), 0.0)
    assert members(one) == {"a"}


def test_they_come_back_when_no_live_one_waits() -> None:
    """Guards against thrashing: each displacement is for a live request that then runs."""
    one = scheduler(max_num_seqs=1)
    one.submit(behind("x"), 0.0)
    turn(one)
    submit(one, *(live(name, max_tokens=3) for name in "abc"))
    ran = [members(one) for _ in range(9)]
    assert ran == [{"a"}] * 3 + [{"b"}] * 3 + [{"c"}] * 3
    assert one.counters["displaced"] == 1
    assert members(one) == {"x"}


def test_memory_is_taken_from_the_background_first() -> None:
    """Guards live requests when memory is short: to be admitted, and to grow."""
    traits = replace(TRAITS, kv_tokens=60)
    one = scheduler(traits=traits, watermark=0.0, enable_prefix_caching=False)
    submit(one, behind("x", 30), behind("y", 10))
    turn(one)
    turn(one)
    one.submit(live("a", 20, max_tokens=40), 0.0)
    _, events = turn(one)
    assert losses(events) == [("y", PreemptReason.DISPLACED, "a")]
    assert runs(one) == {"a", "x"}
    victims = []
    while "x" in runs(one):
        victims += losses(turn(one)[1])
    assert victims == [("x", PreemptReason.SAVED, "a")]
    assert runs(one) == {"a"}


@pytest.mark.parametrize("kv_tokens", [40, 41, 42])
def test_a_background_one_takes_memory_from_no_live_one(kv_tokens: int) -> None:
    """Guards live requests of a tenant above its share: others may take that, batches may not. With
    each size another one finds the memory full."""
    traits = replace(TRAITS, kv_tokens=kv_tokens)
    one = scheduler(
        max_num_seqs=4, traits=traits, watermark=0.0, prefill_chunk=4, enable_prefix_caching=False
    )
    share = Share(waiting_max=9, waiting_tokens_max=1000, running_max=2)
    one.submit(behind("x", 4, max_tokens=30), 0.0)
    turn(one)
    submit(one, *(live(name, 4, tenant="t", share=share, max_tokens=14) for name in "ab"))
    events = []
    for _ in range(60):
        events += turn(one)[1]
    assert {victim for victim, _, _ in losses(events)} == {"x"}
    ends = [each for each in events if isinstance(each, FinishEvent)]
    assert {each.reason for each in ends} == {FinishReason.LENGTH}
    assert len(ends) == 3


@pytest.mark.parametrize("mix", list(Mix))
def test_they_sit_out_while_a_first_token_is_due(mix: Mix) -> None:
    """Guards the time to the first token: a prompt shares no tick with the background."""
    one = scheduler(mix=mix, prefill_chunk=4)
    submit(one, behind("x"), behind("y", 60))
    turn(one)
    turn(one)
    one.submit(live("a", 10), 0.0)
    assert [turn(one)[0] for _ in range(3)] == [{"a": 4}, {"a": 4}, {"a": 2}]
    assert one.counters["sat_out"] == 3
    beside = [members(one) for _ in range(4)]
    assert set.union(*beside) == {"a", "x", "y"}, "they go on beside its decodes"


def test_a_prompt_of_one_token_has_a_first_token_too() -> None:
    """Guards prompts that are cached but for their last token: they look like decodes."""
    one = scheduler()
    one.submit(behind("x"), 0.0)
    turn(one)
    one.submit(live("a", 1), 0.0)
    assert members(one) == {"a"}


def test_they_sit_out_for_one_that_was_preempted_and_prefills_again() -> None:
    """Guards a live request after a loss: its next token is as urgent as its first."""
    one = scheduler(prefill_chunk=4)
    submit(one, live("a", 12), behind("x"))
    for _ in range(5):
        turn(one)
    one.fail("the backend died.", 0.0)
    assert [members(one) for _ in range(4)] == [{"a"}] * 4
    assert members(one) == {"a", "x"}


def test_a_first_token_on_its_way_is_not_waited_for() -> None:
    """Guards planning ahead: a batch behind the one with the first token delays nothing."""
    one = scheduler()
    one.submit(behind("x"), 0.0)
    turn(one)
    one.submit(live("a"), 0.0)
    first, second = planned(one), planned(one)
    assert (names(first), names(second)) == (["a"], ["a", "x"])
    applied(one, first)
    applied(one, second)


def test_who_is_in_flight_sits_out_and_is_displaced_when_it_is_back() -> None:
    """Guards a live request while batches are planned ahead: it does not wait for ever."""
    one = scheduler(max_num_seqs=1)
    one.submit(behind("x"), 0.0)
    turn(one)
    flying = planned(one)
    one.submit(live("a"), 0.0)
    assert not one.is_steady
    assert one.plan(0.0) is None
    applied(one, flying)
    assert members(one) == {"a"}


def test_a_live_one_waits_for_no_prefix_of_theirs() -> None:
    """Guards against waiting in a circle: they sit out for the one that would wait for them."""
    one = scheduler(prefill_chunk=8, traits=replace(TRAITS, kv_tokens=4000))
    prompt = tuple(range(10, 90))
    one.submit(behind("x", prompt), 0.0)
    turn(one)
    one.submit(live("a", prompt), 0.0)
    batch = planned(one)
    assert names(batch) == ["a"]
    one.submit(live("b", prompt), 0.0)
    applied(one, batch)
    assert members(one) == {"a"}, "for a live one it waits"
    assert one.counters["prefix_waits"] > 0


def test_a_live_suspect_does_not_wait_for_one_of_theirs() -> None:
    """Guards a live request after failures: suspects run one at a time, and live ones first."""
    one = scheduler()
    submit(one, live("a"), behind("x"))
    turn(one)
    one.pause(RequestId("a"), 0.0)
    (paused,) = one._registry.running
    assert members(one) == {"x"}
    for each in (paused, *one._registry.running):
        each.history.failed_count = 2
        each.history.failed_known = 90
    one.resume(RequestId("a"), 0.0)
    spans, events = turn(one)
    assert losses(events) == [("x", PreemptReason.DISPLACED, "a")]
    assert set(spans) == {"a"}
    assert runs(one) == {"a"}
