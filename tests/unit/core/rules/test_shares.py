"""Shares of the queue and of the places: one tenant never takes all there is."""

from dataclasses import replace
from typing import Any

import pytest

from jitney.core import limits
from jitney.core.admission import LOOKAHEAD
from jitney.core.backend import Traits
from jitney.core.request import Priority, Request, RequestId, Share
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import Policy, Strategy
from jitney.core.snapshot import WaitReason
from jitney.errors import QueueFull
from tests.unit.core import schedulers
from tests.unit.core.schedulers import live, runs, submit, turn

SHARE = Share(waiting_max=512, waiting_tokens_max=100_000, running_max=3)
TRAITS = replace(schedulers.TRAITS, kv_tokens=4000)


# Any: of every setting's type
def scheduler(policy: Policy = Policy.FIFO, traits: Traits = TRAITS, **others: Any) -> Scheduler:
    return schedulers.scheduler(4, traits, policy=policy, enable_prefix_caching=False, **others)


def request(name: str, tenant: str, n: int = 1, share: Share | None = SHARE) -> Request:
    return live(name, (1, 2, 3), max_tokens=8, n=n, tenant=tenant, share=share)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("overtake_s", [0.0, 30.0])
def test_a_tenant_at_its_share_is_passed_over_however_many_it_brought(
    policy: Policy, overtake_s: float
) -> None:
    """Guards the others' places, also against elders and behind more than are looked at."""
    one = scheduler(policy, overtake_s=overtake_s)
    for number in range(4 * LOOKAHEAD):
        one.submit(request(f"a{number:03}", "a"), 0.0)
    one.plan(0.0)
    assert runs(one) == {"a000", "a001", "a002"}
    one.submit(request("b", "b"), 1.0)
    one.plan(2.0)
    assert runs(one) == {"a000", "a001", "a002", "b"}
    one.check()


def test_a_tenant_at_its_share_goes_on_when_one_of_its_own_ends() -> None:
    """Guards invariant 8: what is held back waits for its own tenant, and for nothing else."""
    one = scheduler()
    for number in range(5):
        one.submit(request(f"a{number}", "a"), 0.0)
    one.plan(0.0)
    assert one.snapshot().deferred_count == 2
    assert one.counters["share_waits"] > 0
    shown = {each.request_id: each.reason for each in one.detail(0.0).waiting}
    assert shown == {"a3": WaitReason.SHARE, "a4": WaitReason.SHARE}
    one.cancel(RequestId("a1"), 0.0)
    one.plan(0.0)
    assert runs(one) == {"a0", "a2", "a3"}
    one.fail("the backend died.", 0.0)
    one.plan(0.0)
    assert runs(one) == {"a0", "a2", "a3"}
    one.check()


def test_two_calls_of_one_tenant_do_not_fill_the_queue() -> None:
    """Guards the queue: 64 prompts of 16 completions are 1024 sequences, as many as may wait."""
    one = scheduler()
    accepted = 0
    for number in range(128):
        try:
            one.submit(request(f"a{number}", "a", n=16), 0.0)
        except QueueFull as error:
            refusal = error
        else:
            accepted += 1
    assert accepted == 512 // 16
    assert "its share of the queue is 512" in str(refusal)
    assert refusal.retry_after_s > 0
    assert one.counters["share_full"] == 128 - accepted
    submit(one, request("b", "b", n=16), request("anyone", "", n=16, share=None))
    one.check()


def test_the_tokens_that_wait_are_shared_as_well() -> None:
    """Guards the queue against few requests that are long."""
    one = scheduler()
    share = replace(SHARE, waiting_tokens_max=6)
    for number in range(2):
        one.submit(request(f"a{number}", "a", share=share), 0.0)
    with pytest.raises(QueueFull, match="512 and 6"):
        one.submit(request("a2", "a", share=share), 0.0)


def test_who_has_nothing_waiting_may_bring_one_request_of_any_size() -> None:
    """Guards small shares: what is never taken would have to be told so, and is not."""
    one = scheduler()
    share = Share(waiting_max=1, waiting_tokens_max=1, running_max=1)
    one.submit(request("a", "a", n=16, share=share), 0.0)
    with pytest.raises(QueueFull):
        one.submit(request("again", "a", share=share), 0.0)
    one.plan(0.0)
    assert [each.request.id for each in one._registry.running] == ["a"]


def test_a_group_departs_without_those_at_their_share() -> None:
    """Guards the group strategies: the places that are left stay empty, and the next group goes."""
    one = scheduler(strategy=Strategy.STATIC)
    for number in range(6):
        one.submit(request(f"a{number}", "a"), 0.0)
    one.plan(0.0)
    assert runs(one) == {"a0", "a1", "a2"}
    one.submit(request("b", "b"), 0.0)
    one.cancel(RequestId("a0"), 0.0)
    one.plan(0.0)
    assert runs(one) == {"a1", "a2"}, "nobody joins a group on its way"
    for name in ("a1", "a2"):
        one.cancel(RequestId(name), 0.0)
    one.plan(2.0)
    assert runs(one) == {"a3", "a4", "a5", "b"}


def test_prompts_that_fill_a_tick_do_not_cut_their_group() -> None:
    """Guards groups of callers with keys: the first tick had room for one prompt."""
    traits = replace(TRAITS, kv_tokens=4000)
    one = scheduler(strategy=Strategy.STATIC, traits=traits, max_num_batched_tokens=40)
    share = replace(SHARE, running_max=8)
    for number in range(4):
        one.submit(replace(long_request(f"a{number}", "a", 50), share=share), 0.0)
    one.stop_gathering()
    for _ in range(8):
        turn(one)
    assert runs(one) == {"a0", "a1", "a2", "a3"}


def test_a_higher_class_does_not_lift_the_share() -> None:
    """Guards places against a tenant that calls everything critical."""
    one = scheduler(Policy.PRIORITY)
    for number in range(3):
        one.submit(request(f"a{number}", "a"), 0.0)
    one.plan(0.0)
    submit(one, replace(request("urgent", "a"), priority=Priority.CRITICAL), request("b", "b"))
    one.plan(0.0)
    assert runs(one) == {"a0", "a1", "a2", "b"}
    one.check()


def long_request(name: str, tenant: str, tokens: int, tokens_max: int = 8) -> Request:
    """A prompt that nobody else has."""
    prompt = tuple((ord(letter) * 31 + at) % 500 + 10 for at, letter in enumerate(name * tokens))
    return live(name, prompt[:tokens], max_tokens=tokens_max, tenant=tenant, share=SHARE)


# Any: of every setting's type
def tight(kv_tokens: int, **settings: Any) -> Scheduler:
    """Blocks of one token, so that memory is counted by hand."""
    traits = replace(TRAITS, kv_tokens=kv_tokens, model_len_max=60, block_tokens=1)
    return scheduler(traits=traits, watermark=0.0, **settings)


def test_a_tenant_that_fills_a_tick_does_not_keep_others_out() -> None:
    """Guards a short prompt: five long ones of another tenant kept it waiting for a minute."""
    one = tight(4000, max_num_batched_tokens=40, prefill_chunk=40)
    for number in range(5):
        one.submit(long_request(f"a{number}", "a", 50), 0.0)
    turn(one)
    one.submit(long_request("b", "b", 10), 0.0)
    assert one.detail(0.0).waiting[-1].reason is WaitReason.NEXT
    assert turn(one)[0] == {"a0": 10, "a1": 20, "b": 10}


def test_a_tenant_at_its_share_of_memory_is_passed_over() -> None:
    """Guards the others' memory: who has room in the queue and a place has none to run in."""
    one = tight(100)
    for number in range(3):
        one.submit(long_request(f"a{number}", "a", 30), 0.0)
    one.submit(long_request("b", "b", 20), 0.0)
    turn(one)
    assert runs(one) == {"a0", "a1", "b"}
    assert [each.reason for each in one.detail(0.0).waiting] == [WaitReason.SHARE]


def test_one_sequence_is_always_within_its_tenants_share() -> None:
    """Guards a long request against waiting for ever."""
    one = tight(60)
    one.submit(long_request("a", "a", 55), 0.0)
    turn(one)
    assert runs(one) == {"a"}


def test_memory_beyond_a_share_is_taken_back_for_who_arrives() -> None:
    """Guards a new request: what another tenant grew beyond its share was never given back."""
    one = tight(100)
    for number in range(3):
        one.submit(long_request(f"a{number}", "a", 20, tokens_max=40), 0.0)
    for _ in range(12):
        turn(one)
    assert len(runs(one)) == 3
    one.submit(long_request("b", "b", 20), 0.0)
    turn(one)
    assert runs(one) == {"a0", "a1", "b"}
    assert one.counters["preempted_saved"] == 1


def test_a_tenant_beyond_its_share_takes_from_its_own() -> None:
    """Guards a running stream: the least computed of all was sent back, however small."""
    one = tight(100)
    for number in range(3):
        one.submit(long_request(f"a{number}", "a", 20, tokens_max=40), 0.0)
    one.submit(long_request("b", "b", 5, tokens_max=40), 0.0)
    while one.counters["ended_finished"] == 0:
        turn(one)
        assert "b" in runs(one)
    assert one.counters["preempted_saved"] > 0


def test_a_tenant_sent_back_for_its_memory_does_not_return_at_once() -> None:
    """Guards a newcomer: a cached prefix was not counted, and its owner came back before him."""
    traits = replace(TRAITS, kv_tokens=400, model_len_max=200, block_tokens=1, can_save=False)
    one = schedulers.scheduler(4, traits, watermark=0.0)
    head = long_request("h", "a", 100, tokens_max=2)
    one.submit(head, 0.0)
    while one.snapshot().unfinished_count:
        turn(one)
    one.submit(long_request("k", "a", 139, tokens_max=60), 0.0)
    turn(one)
    longer = (*head.prompt, *range(600, 661))
    one.submit(live("m", longer, max_tokens=30, tenant="a", share=SHARE), 0.0)
    turn(one)
    one.submit(long_request("n", "b", 150), 1.0)
    for _ in range(3):
        turn(one, 1.0)
    assert runs(one) == {"k", "n"}


def test_the_detail_says_that_all_of_a_crowded_tenant_wait_for_its_share() -> None:
    """Guards whoever asks why: a small request behind a large one of its tenant was `next`."""
    one = tight(100)
    for name, count in (("c", 30), ("d", 30), ("e", 40), ("f", 2)):
        one.submit(long_request(name, "a", count), 0.0)
    turn(one)
    assert runs(one) == {"c", "d"}
    assert [each.reason for each in one.detail(0.0).waiting] == [WaitReason.SHARE] * 2


def test_who_is_held_back_by_memory_joins_no_group_on_its_way() -> None:
    """Guards groups: what a share holds back departs with the next one."""
    one = tight(100, strategy=Strategy.STATIC)
    submit(one, *(long_request(name, "a", 30) for name in "cde"))
    turn(one, 2.0)
    assert runs(one) == {"c", "d"}
    one.submit(long_request("f", "b", 5), 2.0)
    turn(one, 2.0)
    assert runs(one) == {"c", "d"}


def test_long_prefixes_are_copied_to_few_in_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards those who generate: a copy moves bytes, and many wait for one prefix together."""
    monkeypatch.setattr(limits, "COPIED_TOKENS_MAX", 60)
    one = schedulers.scheduler(traits=replace(TRAITS, slots_max=16))
    for name in "abcdefg":
        one.submit(replace(long_request("same", "t", 50), id=RequestId(name), share=None), 0.0)
    turn(one)
    assert runs(one) == {"a"}
    turn(one)
    assert runs(one) == {"a", "b", "c"}
    turn(one)
    assert runs(one) == {"a", "b", "c", "d", "e"}
