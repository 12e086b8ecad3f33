"""Background requests beside live ones in a tick: spans, planning ahead, groups, memory, words."""

from dataclasses import replace

import pytest

from jitney.core.batch import Release
from jitney.core.events import FinishEvent, FinishReason
from jitney.core.request import Share
from jitney.core.rules.background import EARLY_S_MAX, STALL_PART, background_budget
from jitney.core.rules.cost import CostModel
from jitney.core.rules.mix import PREFILL_MIN, STALL_FACTOR, Budget
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.scheduler_settings import Mix, Strategy
from jitney.core.snapshot import WaitReason
from jitney.errors import QueueFull
from tests.unit.core.schedulers import (
    TRAITS,
    applied,
    behind,
    live,
    members,
    names,
    planned,
    runs,
    scheduler,
    submit,
    turn,
)


@pytest.mark.parametrize("mix", [mix for mix in Mix if mix is not Mix.SEPARATE])
def test_beside_live_decodes_their_prefill_is_short(mix: Mix) -> None:
    """Guards the inter-token time under every mix, also where live prompts may take all of it."""
    one = scheduler(
        mix=mix, traits=replace(TRAITS, kv_tokens=4000, model_len_max=4000), stall_s_target=0.1
    )
    one.submit(live("a", max_tokens=90), 0.0)
    turn(one)
    for _ in range(4):
        applied(one, planned(one), seconds=0.02)
    one.submit(behind("x", 90), 0.0)
    spans = []
    for _ in range(6):
        batch = planned(one)
        prefill = sum(each.length for each in batch.batch.entries if each.length > 1)
        spans.append(prefill)
        applied(one, batch, seconds=0.02 + 0.002 * prefill)
    # 50 ms in all, half of the target: the decode takes 20, and each token of prefill 2.
    assert spans == [PREFILL_MIN] * 5 + [90 - 5 * PREFILL_MIN]


def model(decode_s: float, fixed_s: float, prefill_s: float = 0.001) -> CostModel:
    """Has seen what a tick takes."""
    cost = CostModel()
    for count in range(1, 40):
        decodes = 1 + count % 8
        cost.observe(decodes, 0, fixed_s + decodes * decode_s)
        cost.observe(decodes, 64, fixed_s + decodes * decode_s + 64 * prefill_s)
    return cost


def test_a_tick_with_background_work_is_short() -> None:
    """Guards whoever comes meanwhile: decodes and prefill together keep to a part of the target."""
    cost, budget = model(decode_s=0.002, fixed_s=0.01), Budget(512, 512, 0.1)
    decodes, left = background_budget(2, 6, budget, cost)
    assert decodes == 6
    assert left.tokens - decodes == pytest.approx(1000 * (0.1 * STALL_PART - 0.026), abs=2)
    # Where they take too long, they take turns.
    slow = model(decode_s=0.02, fixed_s=0.01)
    decodes, left = background_budget(2, 10, budget, slow)
    assert (
        slow.decodes_s(2 + decodes)
        <= STALL_FACTOR * slow.decodes_s(2)
        < slow.decodes_s(3 + decodes)
    )
    assert left.tokens == decodes + PREFILL_MIN
    # Alone they count as beside one live decode.
    assert background_budget(0, 10, budget, slow)[0] == 2
    assert background_budget(0, 10, budget, CostModel())[0] == 10


def test_live_decodes_and_the_size_of_a_tick_come_first() -> None:
    """Guards the bounds of a tick: what live ones use is not given out twice."""
    assert background_budget(6, 4, Budget(8, 512, 0.1), CostModel())[0] == 2
    assert background_budget(6, 4, Budget(8, 512, 0.1), CostModel())[1].tokens == 2
    budget = Budget(64, 512, 0.1, decode_batch_size=3)
    assert background_budget(2, 4, budget, CostModel())[0] == 1
    assert background_budget(3, 4, budget, CostModel())[0] == 0


def test_slow_decodes_of_the_background_take_turns() -> None:
    """Guards those behind: if a tick has no room for all of them, each has its turn."""
    one = scheduler(stall_s_target=0.001)
    one.submit(live("a", max_tokens=90), 0.0)
    for _ in range(5):
        turn(one)
    submit(one, *map(behind, "wxyz"))
    seen = []
    for _ in range(30):
        batch = one.plan(0.0)
        if batch is None:
            break
        seen.append(set(names(batch)))
        applied(one, batch, seconds=0.01 * len(batch.sequences))
    assert all("a" in each for each in seen)
    crowded = seen[8:16]
    assert max(map(len, crowded)) < 5
    assert set.union(*crowded) == set("awxyz")


def test_the_queue_takes_live_ones_beside_a_full_background() -> None:
    """Guards live requests: a batch that waits does not make the server say it is full."""
    one = scheduler(max_num_seqs=1, max_num_queued_reqs=2)
    submit(one, *map(behind, "xy"))
    with pytest.raises(QueueFull, match="2 requests") as refusal:
        one.submit(behind("z"), 0.0)
    assert refusal.value.retry_after_s > 0.0
    submit(one, *map(live, "ab"))
    with pytest.raises(QueueFull, match="2 requests"):
        one.submit(live("c"), 0.0)
    snapshot = one.snapshot()
    assert (snapshot.waiting_count, snapshot.background_waiting) == (4, 2)
    assert (snapshot.waiting_tokens, snapshot.background_tokens) == (12, 6)


def test_a_prompt_of_the_background_does_not_fill_the_tick_for_live_ones() -> None:
    """Guards admission: a tick that is full of background prompts has room for a live one."""
    one = scheduler(max_num_seqs=4, max_num_batched_tokens=8, prefill_chunk=8)
    submit(one, behind("x", 60), behind("y", 60))
    turn(one)
    assert runs(one) == {"x"}, "one of them fills it for the other"
    one.submit(live("a"), 0.0)
    assert members(one) == {"a"}


def test_they_are_no_part_of_a_group() -> None:
    """Guards group strategies: a group waits neither for them nor behind them."""
    one = scheduler(max_num_seqs=2, strategy=Strategy.STATIC, wait_s=10.0)
    submit(one, behind("x"), live("a", max_tokens=3))
    assert members(one) == {"x"}, "it uses the time in which a group gathers"
    assert runs(one) == {"x"}
    submit(one, live("b", max_tokens=5), live("c"))
    assert members(one) == {"a", "b"}
    for _ in range(2):
        turn(one)
    assert members(one) == {"b", "x"}, "a slot of the group that nobody else may have"
    assert members(one) == {"b", "x"}
    turn(one, 11.0)
    assert runs(one) == {"c", "x"}


def test_a_window_counts_live_ones_only() -> None:
    """Guards `max_wait_ms`: background requests neither fill nor wait for a window."""
    one = scheduler(max_num_seqs=2, wait_s=1.0)
    one.submit(behind("x"), 0.0)
    assert members(one) == {"x"}
    one.submit(live("a"), 0.0)
    assert members(one) == {"x"}
    assert one.wake_at(0.0) == 1.0
    one.submit(live("b"), 0.0)
    assert members(one) == {"a", "b"}, "two fill it, though one slot was taken"


def flying(one: Scheduler, seconds: float = 0.01) -> PlannedBatch:
    """A batch of decodes that is in flight, after some that took so long."""
    for _ in range(3):
        applied(one, planned(one), seconds=seconds)
    return planned(one)


def test_planning_ahead_goes_on_beside_a_background_that_waits() -> None:
    """Guards live decodes: a batch behind them must not make every tick longer. Without live ones,
    a free slot goes to the next of the background at once."""
    one = scheduler(max_num_seqs=2)
    one.submit(live("a"), 0.0)
    submit(one, *map(behind, "xy"))
    flying(one)
    assert one.snapshot().background_waiting == 1
    assert one.is_steady
    alone = scheduler(max_num_seqs=2)
    for name in "xyz":
        alone.submit(behind(name), 0.0)
    flying(alone)
    assert not alone.is_steady


def test_a_long_tick_with_background_work_is_not_planned_ahead() -> None:
    """Guards a live request that comes just then: it would wait for two of them."""
    for request, is_steady in ((live("a"), True), (behind("x"), False)):
        one = scheduler()
        one.submit(request, 0.0)
        flying(one, seconds=2 * EARLY_S_MAX)
        assert one.is_steady is is_steady


def test_what_they_leave_in_memory_is_evicted_first() -> None:
    """Guards the cached prefixes of conversations against a batch that passes through."""
    traits = replace(TRAITS, kv_tokens=100)
    one = scheduler(traits=traits, watermark=0.0)
    one.submit(live("a", 40, max_tokens=1), 0.0)
    turn(one)
    one.submit(behind("x", 40, max_tokens=1), 0.0)
    while one.snapshot().unfinished_count:
        turn(one)
    assert one.snapshot().cached_count == 2
    one.submit(live("b", 40, max_tokens=1), 0.0)
    batch = planned(one)
    assert [each.slot for each in batch.batch.operations if isinstance(each, Release)] == [1]


def test_people_are_told_why_they_wait() -> None:
    """Guards the page: a batch that stands still says for whom."""
    one = scheduler(max_num_seqs=1)
    submit(one, behind("x"), behind("y"))
    turn(one)
    assert [each.reason for each in one.detail(0.0).waiting] == [WaitReason.SLOT]
    one.submit(live("a"), 0.0)
    reasons = {str(each.request_id): each.reason for each in one.detail(0.0).waiting}
    assert reasons == {"a": WaitReason.NEXT, "y": WaitReason.LIVE}
    snapshot = one.snapshot()
    assert (snapshot.running_count, snapshot.background_running) == (1, 1)


def test_their_deadline_ends_their_wait() -> None:
    """Guards the exception to invariant 8: this is the only bound that they have."""
    one = scheduler(max_num_seqs=1)
    submit(one, live("a"), behind("x", queue_timeout_s=100.0))
    turn(one)
    assert one.wake_at(0.0) == 100.0
    (end,) = one.expire(100.0)
    assert isinstance(end, FinishEvent)
    assert end.reason is FinishReason.DEADLINE


def test_they_have_no_share() -> None:
    """Guards shares: what is behind everybody cannot use up what its tenant may have."""
    with pytest.raises(AssertionError, match="what others leave"):
        behind("x", share=Share(waiting_max=1, waiting_tokens_max=1, running_max=1))
