"""What callers and settings ask of the scheduler beside running: pause, classes, pure ticks."""

import math
from dataclasses import replace

import pytest

from jitney.core.events import FinishEvent, FinishReason, PreemptReason
from jitney.core.limits import PAUSE_S_MAX
from jitney.core.request import Priority, RequestId, Share
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import Candidate, Mix, Policy, Strategy
from jitney.core.snapshot import WaitReason
from jitney.errors import QueueFull
from tests.unit.core.schedulers import (
    TRAITS,
    LastFirst,
    applied,
    losses,
    planned,
    runs,
    scheduler,
    submit,
    turn,
)
from tests.unit.core.schedulers import live as request

A, B, C = (RequestId(name) for name in "abc")


def test_a_paused_request_leaves_its_place_and_comes_back() -> None:
    """Guards pause: nothing is computed for it, others go on, and its memory need not be redone."""
    one = scheduler()
    submit(one, request("a", 20), request("b"))
    turn(one)
    one.pause(A, 0.0)
    ((_, reason, _),) = losses(turn(one)[1])
    assert reason is PreemptReason.PAUSED
    assert runs(one) == {"b"}
    assert (one.snapshot().paused_count, one.snapshot().waiting_count) == (1, 0)
    one.pause(A, 0.0)
    turn(one)
    one.resume(A, 0.0)
    assert turn(one)[0] == {"a": 1, "b": 1}
    assert (one.counters["paused"], one.counters["resumed"]) == (1, 1)


def test_a_request_that_is_in_a_batch_is_paused_when_it_has_returned() -> None:
    """Guards a pause in mid-flight: the token that is under way is not lost."""
    one = scheduler()
    one.submit(request("a"), 0.0)
    batch = planned(one)
    one.pause(A, 0.0)
    assert not one.is_steady
    assert one.plan(0.0) is None
    assert len(applied(one, batch)) == 2
    assert one.plan(0.0) is None
    assert runs(one) == set()
    one.check()


def test_a_paused_request_ends_by_its_deadline_and_by_a_cancel() -> None:
    """Guards the paused against being forgotten: time limits hold, and a cancel reaches them."""
    one = scheduler()
    submit(one, request("a", request_timeout_s=5.0), request("b"))
    turn(one)
    one.pause(A, 0.0)
    one.pause(B, 0.0)
    turn(one)
    assert one.wake_at(0.0) == 5.0
    ends = [each for each in one.expire(5.0) if isinstance(each, FinishEvent)]
    assert [each.reason for each in ends] == [FinishReason.DEADLINE]
    ends = [each for each in one.cancel(B, 6.0) if isinstance(each, FinishEvent)]
    assert [each.reason for each in ends] == [FinishReason.CANCELLED]
    one.check()
    assert one.snapshot().waiting_count == 0


def test_a_pause_ends_by_itself() -> None:
    """Guards the queue: whoever pauses and goes away does not keep a place for ever."""
    one = scheduler()
    one.submit(request("a"), 0.0)
    one.pause(A, 1.0)
    assert not turn(one, 1.0)[0]
    assert one.wake_at(1.0) == 1.0 + PAUSE_S_MAX
    one.expire(1.0 + PAUSE_S_MAX)
    assert turn(one, 1.0 + PAUSE_S_MAX)[0]
    assert one.counters["pauses_ended"] == 1


def test_all_pauses_of_a_request_together_are_bounded() -> None:
    """Guards against one that is resumed and paused again, for ever."""
    one = scheduler()
    one.submit(request("a"), 0.0)
    one.pause(A, 0.0)
    one.resume(A, PAUSE_S_MAX - 1.0)
    one.pause(A, 1000.0)
    assert one.wake_at(1000.0) == 1001.0
    one.expire(1001.0)
    assert one.pause(A, 1002.0) is PauseOutcome.TOO_LONG
    assert one.snapshot().paused_count == 0
    assert one.counters["pauses_refused"] == 1


def test_only_a_part_of_the_queue_may_be_paused_and_the_rest_stays_open() -> None:
    """Guards everybody else: one caller cannot fill the queue with requests that do nothing."""
    one = scheduler(max_num_queued_reqs=8)
    for name in "abcd":
        one.submit(request(name), 0.0)
        one.pause(RequestId(name), 0.0)
    assert (one.snapshot().paused_count, one.snapshot().waiting_count) == (2, 2)
    assert one.counters["pauses_refused"] == 2
    submit(one, *map(request, "efghij"))
    with pytest.raises(QueueFull, match="8 requests"):
        one.submit(request("k"), 0.0)
    one.check()


def test_of_a_request_all_sequences_are_paused_or_none() -> None:
    """Guards who asks for several completions: half of them would go on, and nobody would say."""
    one = scheduler(max_num_queued_reqs=8)
    submit(one, request("a", n=2), request("b", n=2), request("c"))
    assert one.pause(C, 0.0) is PauseOutcome.PAUSED
    assert one.pause(A, 0.0) is PauseOutcome.TOO_MANY
    assert one.snapshot().paused_count == 1
    one.resume(C, 0.0)
    assert one.pause(A, 0.0) is PauseOutcome.PAUSED
    assert one.pause(A, 0.0) is PauseOutcome.WAS_PAUSED
    assert one.snapshot().paused_count == 2
    one.cancel(B, 0.0)
    assert one.pause(B, 0.0) is PauseOutcome.ENDED
    one.drain(0.0)
    assert one.pause(A, 0.0) is PauseOutcome.NOT_NOW
    one.check()


def test_a_tenant_may_pause_a_part_of_its_share() -> None:
    """Guards the others' pauses: each tenant has a part of its own."""
    one = scheduler()
    share = Share(waiting_max=4, waiting_tokens_max=1000, running_max=8)
    outcomes = []
    for name in "ab":
        one.submit(request(name, share=share, tenant="x"), 0.0)
        outcomes.append(one.pause(RequestId(name), 0.0))
    assert outcomes == [PauseOutcome.PAUSED, PauseOutcome.TOO_MANY]
    one.submit(request("c", share=share, tenant="y"), 0.0)
    one.pause(C, 0.0)
    assert one.snapshot().paused_count == 2
    assert one.counters["pauses_refused"] == 1
    one.cancel(A, 0.0)
    one.pause(B, 0.0)
    assert one.snapshot().paused_count == 2
    one.check()


def test_a_group_that_waits_until_it_is_full_does_not_wait_for_who_ran_before() -> None:
    """Guards the resumed: it would wait for strangers, perhaps for ever."""
    one = scheduler(max_num_seqs=2, strategy=Strategy.STATIC, wait_s=None)
    submit(one, *map(request, "ab"))
    turn(one)
    one.pause(A, 0.0)
    turn(one)
    one.cancel(B, 0.0)
    one.resume(A, 1.0)
    assert turn(one, 1.0)[0]
    assert runs(one) == {"a"}


def test_a_newcomer_whom_a_share_holds_back_does_not_end_the_window() -> None:
    """Guards the window: one tenant's waiting requests must not switch it off for all."""
    one = scheduler(wait_s=0.5)
    share = Share(waiting_max=9, waiting_tokens_max=1000, running_max=1)
    submit(one, *(request(name, share=share, tenant="x") for name in "ab"))
    turn(one, 0.5)
    turn(one, 0.5)
    one.submit(request("c"), 10.0)
    turn(one, 10.0)
    assert runs(one) == {"a"}
    assert one.wake_at(10.0) == 10.5
    assert one.is_steady
    turn(one, 10.5)
    assert runs(one) == {"a", "c"}


def test_a_resumed_request_is_next_by_its_age() -> None:
    """Guards the place of the paused: it is kept by age."""
    one = scheduler(max_num_seqs=1)
    submit(one, *map(request, "abc"))
    one.pause(A, 0.0)
    turn(one)
    assert runs(one) == {"b"}
    one.resume(A, 0.0)
    one.cancel(B, 0.0)
    turn(one)
    assert runs(one) == {"a"}


def test_no_group_waits_for_a_paused_member() -> None:
    """Guards the others of a group strategy: one caller must not stop them."""
    one = scheduler(max_num_seqs=2, strategy=Strategy.STATIC, wait_s=1.0)
    submit(one, *map(request, "abcd"))
    turn(one)
    one.pause(A, 0.0)
    one.cancel(B, 0.0)
    turn(one)
    assert runs(one) == {"c", "d"}
    assert one.detail(0.0).waiting[0].reason is not WaitReason.GROUP
    one.resume(A, 0.0)
    for name in (C, RequestId("d")):
        one.cancel(name, 0.0)
    turn(one, 2.0)
    assert runs(one) == {"a"}


def test_a_crash_leaves_the_paused_paused() -> None:
    """Guards recovery: the memory of one that is in a batch is lost, and its pause is not."""
    one = scheduler()
    one.submit(request("a"), 0.0)
    one.plan(0.0)
    one.pause(A, 0.0)
    one.fail("gone", 0.0)
    assert one.plan(0.0) is None
    one.check()
    one.resume(A, 0.0)
    assert turn(one)[0]


def test_a_class_can_be_changed_while_it_waits_and_while_it_runs() -> None:
    """Guards reprioritise: the queue and the order of those who run follow it."""
    one = scheduler(max_num_seqs=1, policy=Policy.PRIORITY)
    submit(one, *map(request, "abc"))
    turn(one)
    one.reprioritise(C, Priority.CRITICAL)
    turn(one)
    assert runs(one) == {"c"}
    one.reprioritise(C, Priority.LOW)
    turn(one)
    assert runs(one) == {"a"}


def test_without_preemption_nobody_is_displaced() -> None:
    """Guards `enable_preemption`: the higher class is next and waits for a place."""
    one = scheduler(max_num_seqs=1, policy=Policy.PRIORITY, enable_preemption=False)
    one.submit(request("a"), 0.0)
    turn(one)
    one.submit(request("b", priority=Priority.CRITICAL), 0.0)
    turn(one)
    assert runs(one) == {"a"}
    assert one.counters["displaced"] == 0


def test_under_separate_a_tick_has_prefills_or_decodes() -> None:
    """Guards the mix `separate`: never both, in turns, and each of them sized apart."""
    one = scheduler(mix=Mix.SEPARATE, prefill_chunk=8, prefill_batch_size=1, decode_batch_size=1)
    submit(one, *(request(name, 30) for name in "abcd"))
    kinds = []
    for _ in range(40):
        (span,) = turn(one)[0].values()
        kinds.append(span > 1)
    assert kinds[:8] == [True, True, True, True, True, False, True, False]
    starts = {each.slot for each in one.detail(0.0).slots if each.token_count > 31}
    assert len(starts) == 4, "everybody generates, though one at a time"


def test_under_separate_those_who_were_sent_back_have_no_turn() -> None:
    """Guards the engine: a prefill sent a decode back, found no room all the same, and then the
    decodes had one among them that was none any more."""
    traits = replace(TRAITS, kv_tokens=38)
    one = scheduler(
        8, traits, mix=Mix.SEPARATE, prefill_chunk=8, watermark=0.0, enable_prefix_caching=False
    )
    submit(one, *(request(name, 5) for name in "ab"))
    turn(one)
    submit(one, request("p", 24), request("d", 2))
    for _ in range(12):
        turn(one)
    assert one.counters["kv_full"] > 0


def test_under_separate_tenants_take_turns_at_the_prefill() -> None:
    """Guards a short prompt behind five long ones of another key."""
    one = scheduler(mix=Mix.SEPARATE, prefill_chunk=4, prefill_batch_size=1)
    share = Share(waiting_max=9, waiting_tokens_max=1000, running_max=6)
    submit(one, *(request(name, 70, share=share, tenant="x") for name in "abcde"))
    one.submit(request("s", 6, share=share, tenant="y"), 0.0)
    for _ in range(70 // 4 + 3):
        turn(one)
    views = {str(each.request_id): each.token_count for each in one.detail(0.0).slots}
    assert views["s"] >= 6


class Broken:
    """Answers what is no number."""

    answers: tuple[object, ...] = (None, float("nan"), "x", 10**400)

    def rank(self, candidate: Candidate) -> float:
        if candidate.request_id == "e":
            raise RuntimeError("no idea")
        return self.answers["abcd".index(candidate.request_id)]  # type: ignore[return-value]


class Quits:
    """Leaves by every door there is."""

    def rank(self, candidate: Candidate) -> float:
        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        raise SystemExit(3) if candidate.request_id == "a" else Unspeakable


def started(one: Scheduler) -> list[str]:
    """Who starts, one after the other."""
    order = []
    for _ in range(5):
        turn(one)
        (name,) = runs(one)
        order.append(name)
        one.cancel(RequestId(name), 0.0)
    return order


def test_a_policy_of_ones_own_orders_the_waiting() -> None:
    """Guards the protocol: the smallest rank is next."""
    one = scheduler(max_num_seqs=1, policy=LastFirst())
    submit(one, *map(request, "abcde"))
    assert started(one) == list("edcba")
    assert one.counters["policy_faults"] == 0


def test_a_policy_that_gives_no_rank_harms_nobody_and_is_named() -> None:
    """Guards the engine against a policy that raises or answers nonsense."""
    one = scheduler(max_num_seqs=1, policy=Broken())
    submit(one, *map(request, "abcde"))
    complaints = one.complaints
    assert len(complaints) == one.counters["policy_faults"] == 5
    assert "The policy Broken gave request e no rank" in complaints[-1]
    assert started(one) == list("abcde")


def test_a_policy_cannot_end_the_engine() -> None:
    """Guards the engine thread: an exit, and an error that cannot be put into words."""
    one = scheduler(max_num_seqs=1, policy=Quits())
    submit(one, *map(request, "ab"))
    assert [each.split(": ")[1] for each in one.complaints] == ["SystemExit", "Unspeakable"]


def test_the_oldest_is_not_overtaken_for_ever_by_any_policy() -> None:
    """Guards invariant 8: the rule of elders stands above a policy of one's own."""
    one = scheduler(max_num_seqs=1, policy=LastFirst(), overtake_s=10.0)
    one.submit(request("a"), 0.0)
    one.submit(request("z"), 11.0)
    turn(one, 11.0)
    assert runs(one) == {"a"}


def test_a_request_from_another_engine_keeps_its_age_and_its_place() -> None:
    """Guards the callers of a lost replica: they are next, and no full queue sends them away."""
    one = scheduler(max_num_seqs=1, max_num_queued_reqs=2)
    for name in "abc":
        one.submit(request(name), 10.0)
        turn(one, 10.0)
    with pytest.raises(QueueFull):
        one.submit(request("d"), 10.0)
    one.submit(request("e", waited_s=5.0), 10.0)
    one.cancel(A, 10.0)
    turn(one, 10.0)
    assert runs(one) == {"e"}


def test_the_wait_of_a_moved_request_counts_from_its_first_engine() -> None:
    """Guards streams that move: what ran elsewhere does not wait for its first slot here."""
    one = scheduler(max_num_seqs=1, queue_timeout_s=5.0)
    one.submit(request("a"), 10.0)
    turn(one, 10.0)
    one.submit(request("b", waited_s=4.0), 10.0)
    one.submit(request("c", waited_s=4.0, resumed=((5, 5),)), 10.0)
    one.submit(request("d", waited_s=4.0, queue_timeout_s=math.inf), 10.0)
    ended = {each.request_id for each in one.expire(11.5) if isinstance(each, FinishEvent)}
    assert ended == {B}
    assert not one.expire(100.0)
    assert one.wake_at(100.0) is None, "a limit that is none wakes nobody"
