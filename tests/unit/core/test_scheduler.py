"""The scheduler by hand: a few cases that the simulation found, or that must never come back."""

from dataclasses import replace
from typing import Any

import pytest

from jitney.core.admission import LOOKAHEAD
from jitney.core.events import Event, FinishEvent, StartEvent
from jitney.core.limits import FAILURES_MAX, SCORED_SPAN_MAX
from jitney.core.registry import ENDED_KEPT
from jitney.core.request import Priority, Request, RequestId, Share
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.scheduler_settings import Policy, Strategy
from jitney.errors import QueueFull
from tests.unit.core.schedulers import (
    TRAITS,
    applied,
    behind,
    live,
    members,
    planned,
    scheduler,
    submit,
)


# Any: of every field's type
def request(name: str, prompt: tuple[int, ...] = (1, 2, 3), **others: Any) -> Request:
    return live(name, prompt, max_tokens=8, **others)


def run(one: Scheduler, each: Request) -> list[Event]:
    """Its events, from its start to its end."""
    events = list[Event]()
    one.submit(each, 0.0)
    while (batch := one.plan(0.0)) is not None:
        events += applied(one, batch)
    return events


def test_a_start_is_told_before_the_end_of_a_cancel_in_mid_flight() -> None:
    """Guards invariant 1: a cancel between plan and outcome, and no event after the last one."""
    one = scheduler()
    one.submit(request("a"), 0.0)
    batch = planned(one)
    events = one.cancel(RequestId("a"), 0.0) + applied(one, batch)
    assert [type(event) for event in events] == [StartEvent, FinishEvent]


def test_all_who_score_their_prompts_share_what_a_batch_may_score() -> None:
    """Guards everybody's tick: so many rows over the whole vocabulary were allowed for each."""
    traits = replace(TRAITS, kv_tokens=4000, model_len_max=1000)
    one = scheduler(traits=traits)
    for name in "abc":
        each = live(name, 300)
        one.submit(replace(each, params=replace(each.params, prompt_logprobs=0)), 0.0)
    one.submit(live("d", 300), 0.0)
    spans = dict(zip("abcd", [each.length for each in planned(one).batch.entries], strict=True))
    assert spans.pop("d") == 300
    assert SCORED_SPAN_MAX - 3 < sum(spans.values()) <= SCORED_SPAN_MAX


def test_a_member_of_a_group_comes_back_past_any_number_who_wait() -> None:
    """Guards invariant 8: nobody else may join while its group is on its way, so it has to."""
    one = scheduler(
        max_num_seqs=1, strategy=Strategy.STATIC, policy=Policy.PRIORITY, max_num_queued_reqs=1000
    )
    one.submit(request("member"), 0.0)
    planned(one)
    for number in range(2 * LOOKAHEAD):
        one.submit(request(str(number), priority=Priority.HIGH), 0.0)
    one.fail("the backend died.", 0.0)
    planned(one)
    assert [each.request.id for each in one._registry.running] == ["member"]
    assert one.snapshot().deferred_count == 2 * LOOKAHEAD


def test_a_batch_can_be_planned_before_the_last_one_returned() -> None:
    """Guards run-ahead: the second batch continues from a token nobody here knows yet."""
    one = scheduler()
    one.submit(request("a"), 0.0)
    first, second = planned(one), planned(one)
    assert second.batch.entries[0].continues
    assert (second.batch.entries[0].start, second.batch.entries[0].tokens) == (3, ())
    applied(one, first)
    applied(one, second)
    assert planned(one).batch.entries[0].start == 4


def running(one: Scheduler, count: int) -> PlannedBatch:
    """The batch under way of so many requests that have a token each."""
    for at in range(count):
        one.submit(request(str(at)), 0.0)
    first = planned(one)
    applied(one, first)
    return planned(one)


@pytest.mark.parametrize(
    ("max_num_seqs", "kv_tokens", "is_steady"), [(2, 64, False), (3, 12, False), (3, 64, True)]
)
def test_nothing_is_planned_ahead_while_anyone_wants_room(
    max_num_seqs: int, kv_tokens: int, is_steady: bool
) -> None:
    """Guards those who wait: a slot or memory may become free with the outcome under way."""
    traits = replace(TRAITS, kv_tokens=kv_tokens)
    one = scheduler(traits=traits, max_num_seqs=max_num_seqs)
    running(one, 2)
    assert one.is_steady
    one.submit(request("late"), 0.0)
    assert one.is_steady is is_steady


def test_nothing_is_planned_ahead_while_a_share_holds_anyone_back() -> None:
    """Guards a tenant at its share: its next one starts when one of its own ends."""
    one = scheduler(max_num_seqs=3)
    share = Share(running_max=1, waiting_max=8, waiting_tokens_max=100)
    one.submit(request("a", tenant="t", share=share), 0.0)
    applied(one, planned(one))
    planned(one)
    assert one.is_steady
    one.submit(request("b", tenant="t", share=share), 0.0)
    assert not one.is_steady


def test_planning_ahead_needs_memory_for_everyone() -> None:
    """Guards against a sequence that is left out again and again, because nobody can be moved."""
    one = scheduler(traits=replace(TRAITS, kv_tokens=16))
    batch = running(one, 2)
    steady = []
    for _ in range(6):
        steady.append(one.is_steady)
        applied(one, batch)
        batch = planned(one)
    assert steady[0]
    assert not steady[-1]


@pytest.mark.parametrize(("kv_tokens", "is_steady"), [(20, True), (19, False)])
def test_planning_ahead_of_a_prompt_needs_memory_for_all_of_it(
    kv_tokens: int, is_steady: bool
) -> None:
    """Guards prompts of many chunks, between which a GPU would wait; and who is displaced."""
    one = scheduler(traits=replace(TRAITS, kv_tokens=kv_tokens), prefill_chunk=4)
    one.submit(request("short"), 0.0)
    applied(one, planned(one))
    one.submit(request("long", tuple(range(14))), 0.0)
    first = planned(one)
    assert one.is_steady is is_steady
    second = planned(one)
    spans = [(each.start, each.length) for batch in (first, second) for each in batch.batch.spans]
    assert spans == [(0, 4), (4, 4)]
    applied(one, first)
    applied(one, second)


def test_a_full_queue_says_when_to_come_back() -> None:
    """Guards invariant 9: the bound counts sequences, and the refusal carries a time."""
    one = scheduler(max_num_queued_reqs=1)
    one.submit(request("a"), 0.0)
    with pytest.raises(QueueFull) as refusal:
        one.submit(request("b"), 0.0)
    assert refusal.value.retry_after_s > 0.0
    assert one.counters["accepted"] == 1


def test_completions_of_one_request_share_its_prefill() -> None:
    """Guards `n`: the prompt is computed once and copied."""
    one, prompt = scheduler(), tuple(range(10, 60))
    one.submit(request("a", prompt, n=3), 0.0)
    while (batch := one.plan(0.0)) is not None:
        applied(one, batch)
    assert one.counters["computed_prompt_tokens"] < len(prompt) + 10
    assert one.counters["ended_finished"] == 3


def test_a_span_that_is_computed_again_counts_by_prompt_and_completion() -> None:
    """Guards the counters: a span that reached past the prompt counted as prompt as a whole."""
    one = scheduler()
    one.submit(request("a"), 0.0)
    for _ in range(2):
        applied(one, batch := planned(one))
    one.fail("the backend died.", 0.0)
    applied(one, batch := planned(one))
    assert [entry.length for entry in batch.batch.entries] == [5]
    counts = one.counters["computed_prompt_tokens"], one.counters["computed_completion_tokens"]
    assert counts == (3 + 3, 1 + 2)


def started(events: list[Event]) -> set[str]:
    return {event.request_id for event in events if isinstance(event, StartEvent)}


def test_tenants_who_arrive_together_share_the_places_of_the_first_tick() -> None:
    """Guards `fair`: counts that are only raised by outcomes let one tenant take every place."""
    one = scheduler(policy=Policy.FAIR)
    for number in range(20):
        one.submit(request(f"many-{number}", (1, number), tenant="many"), 0.0)
    for number in range(4):
        one.submit(request(f"few-{number}", (2, number), tenant="few"), 0.0)
    batch = planned(one)
    names = started(applied(one, batch))
    assert {name for name in names if name.startswith("few")} == {f"few-{n}" for n in range(4)}


def test_a_crash_takes_nobodys_fair_share() -> None:
    """Guards `fair`: whoever is put back to wait has not been away."""
    one = scheduler(max_num_seqs=1, policy=Policy.FAIR)
    one.submit(request("long", tuple(range(10, 70)), tenant="greedy"), 0.0)
    one.submit(request("next", (1, 2), tenant="modest"), 0.0)
    assert planned(one).batch.token_count == 60
    one.fail("the backend died.", 0.0)
    batch = planned(one)
    assert started(applied(one, batch)) == {"next"}


def test_a_long_prompt_leaves_the_rest_of_the_tick_to_others() -> None:
    """Guards the budget: a sequence takes a chunk of a tick, however much it still wants."""
    traits = replace(TRAITS, kv_tokens=2000, model_len_max=1000)
    one = scheduler(traits=traits, max_num_batched_tokens=64, prefill_chunk=16)
    one.submit(request("long", tuple(range(500))), 0.0)
    planned(one)
    one.submit(request("short", (1, 2, 3)), 0.0)
    assert planned(one).batch.token_count == 16 + 3


def test_deadlines_of_ended_requests_are_forgotten() -> None:
    """Guards memory: what ended long before its deadline must not be kept until then."""
    one = scheduler(request_timeout_s=3600.0)
    for number in range(2000):
        one.submit(request(f"request-{number}"), 0.0)
        one.cancel(RequestId(f"request-{number}"), 0.0)
        one.expire(0.0)
    assert one.wake_at(0.0) is None
    assert len(one._registry.deadlines._due) <= ENDED_KEPT


def test_nobody_is_struck_for_a_batch_that_never_reached_the_backend() -> None:
    """Guards invariant 10: a process that died while idle is no fault of the next batch."""
    one = scheduler()
    one.submit(request("innocent"), 0.0)
    for _ in range(FAILURES_MAX + 1):
        planned(one)
        assert not any(isinstance(e, FinishEvent) for e in one.fail("gone", 0.0))
    assert one.counters["struck_out"] == 0


@pytest.mark.parametrize(("decodes_differ", "spans"), [(True, [3, 1, 1, 1]), (False, [5, 1])])
def test_what_was_generated_is_computed_again_as_it_was(
    decodes_differ: bool, spans: list[int]
) -> None:
    """Guards invariant 4 after a crash: a prompt in a span, and then token by token."""
    one = scheduler(traits=replace(TRAITS, decodes_differ=decodes_differ))
    one.submit(request("a"), 0.0)
    for _ in range(2):
        batch = planned(one)
        applied(one, batch)
    one.fail("it crashed", 0.0)
    seen = []
    for _ in spans:
        batch = planned(one)
        seen.append(batch.batch.entries[0].length)
        applied(one, batch)
    assert seen == spans


def test_what_is_computed_again_one_by_one_keeps_nobody_out() -> None:
    """Guards streams after a crash: their tokens seemed to fill ticks that had room for all."""
    traits = replace(TRAITS, decodes_differ=True)
    one = scheduler(traits=traits, max_num_batched_tokens=16, prefill_chunk=16)
    submit(one, *(live(name) for name in "abcd"))
    for _ in range(10):
        applied(one, planned(one))
    one.fail("it crashed", 0.0)
    assert [each.length for each in planned(one).batch.entries] == [3, 3, 3, 3]


def test_deadlines_of_live_completions_are_not_sorted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards invariant 11: many completions of few requests are no reason to look at all limits."""
    one = scheduler(max_num_queued_reqs=2000)
    for number in range(2 * ENDED_KEPT // 16):
        each = request(str(number), n=16, queue_timeout_s=50.0, request_timeout_s=90.0)
        one.submit(each, 0.0)
    sorted_again: list[object] = []
    monkeypatch.setattr("jitney.core.registry.heapq.heapify", sorted_again.append)
    one.expire(1.0)
    assert not sorted_again


def test_nobody_takes_the_place_of_a_member_that_waits_for_its_prefix() -> None:
    """Guards groups: one that came later was let in, and a member waited for the next group."""
    one = scheduler(max_num_seqs=2, strategy=Strategy.DYNAMIC, wait_s=5.0, prefill_chunk=16)
    prompt = tuple(range(10, 90))
    submit(one, request("first", prompt), request("second", prompt))
    events, batch = list[Event](), planned(one)
    assert [each.request.id for each in batch.sequences] == ["first"]
    one.submit(request("late"), 0.0)
    while batch.sequences:
        events += applied(one, batch)
        batch = one.plan(0.0) or replace(batch, sequences=())
    ended = [each.request_id for each in events if isinstance(each, FinishEvent)]
    assert ended == ["first", "second"]
    assert planned(one, 5.0).sequences[0].request.id == "late"


def test_what_background_requests_share_is_evicted_before_what_a_live_one_left() -> None:
    """Guards conversations: lines of a batch with one system prompt would push them out."""
    one = scheduler(traits=replace(TRAITS, kv_tokens=200))
    chat, system = tuple(range(100, 180)), tuple(range(10, 58))
    run(one, live("chat", chat, max_tokens=8))
    run(one, behind("line", (*system, 1, 2, 3), max_tokens=8))
    run(one, behind("next", (*system, 4, 5, 6), max_tokens=8))
    run(one, live("other", 90, max_tokens=8))
    assert one.counters["evicted"]
    [start, *_] = run(one, live("again", chat, max_tokens=8))
    assert isinstance(start, StartEvent)
    assert start.cached_count >= 72


@pytest.mark.parametrize("policy", [Policy.SJF, Policy.PRIORITY])
def test_many_who_came_later_do_not_hide_a_member_of_the_group(policy: Policy) -> None:
    """Guards groups: a preempted member stood behind more newcomers than are looked at."""
    one = scheduler(
        traits=replace(TRAITS, kv_tokens=120),
        max_num_seqs=3,
        max_num_queued_reqs=200,
        strategy=Strategy.DYNAMIC,
        wait_s=0.0,
        policy=policy,
        enable_prefix_caching=False,
    )
    submit(one, *(live(name, 20, max_tokens=60) for name in "ab"), live("c", 90, max_tokens=5))
    ended: list[str] = []
    batch: PlannedBatch | None = planned(one)
    for number in range(2 * LOOKAHEAD):
        late = live("z", 3, max_tokens=1, priority=Priority.HIGH)
        one.submit(replace(late, id=RequestId(f"z{number}")), 0.0)
    while batch is not None and "b" not in ended:
        events = applied(one, batch)
        ended += [each.request_id for each in events if isinstance(each, FinishEvent)]
        batch = one.plan(0.0)
    assert ended[:2] == ["a", "b"]
    assert one.counters["preempted_saved"], "b had to wait"


@pytest.mark.parametrize("waits_for", ["prefix", "memory"])
def test_a_group_goes_on_with_a_member_that_had_to_wait(waits_for: str) -> None:
    """Guards invariant 13: when all others had ended, one that waited for the prefix of one of
    them, or for its memory, had to wait for another group: under `static` perhaps for ever."""
    is_prefix = waits_for == "prefix"
    traits = TRAITS if is_prefix else replace(TRAITS, kv_tokens=100)
    one = scheduler(
        2, traits, strategy=Strategy.STATIC, wait_s=None, enable_prefix_caching=is_prefix
    )
    submit(one, *(live(name, tuple(range(10, 70)), max_tokens=1) for name in "ab"))
    assert members(one) == {"a"}
    assert one.holds_answers
    one.submit(live("late"), 0.0)
    assert members(one) == {"b"}
    assert not one.holds_answers
    assert one.plan(0.0) is None


def test_a_group_knows_its_members_beside_one_that_is_older() -> None:
    """Guards groups: the oldest, which had come from another engine, was not of the group, and so
    seemed all who came after it."""
    one = scheduler(2, strategy=Strategy.STATIC, wait_s=None, prefill_chunk=16)
    submit(one, *(live(name, tuple(range(10, 70))) for name in "ab"))
    assert members(one) == {"a"}
    one.submit(live("older", waited_s=5.0), 0.0)
    for _ in range(1):
        assert members(one) == {"a"}
    assert members(one) == {"a", "b"}


def test_a_group_whose_last_member_will_not_come_is_complete() -> None:
    """Guards background work and batches ahead: the gate stayed open for nobody."""
    one = scheduler(
        traits=replace(TRAITS, kv_tokens=120),
        max_num_seqs=3,
        strategy=Strategy.DYNAMIC,
        wait_s=0.0,
        enable_prefix_caching=False,
    )
    submit(one, *(live(name, 20, max_tokens=30) for name in "ab"), live("c", 90, max_tokens=5))
    applied(one, planned(one))
    one.cancel(RequestId("c"), 0.0)
    submit(one, live("late", 3), behind("line", 3, max_tokens=2))
    applied(one, planned(one))
    batch = planned(one)
    assert [each.request.id for each in batch.sequences] == ["a", "b", "line"]
    assert one.is_steady
