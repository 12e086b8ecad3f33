"""The detail for people: memory by stretches, and a reason for everyone who waits."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from jitney.core.admission import LOOKAHEAD
from jitney.core.limits import SUSPECT_FAILURES
from jitney.core.request import Request
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import Strategy
from jitney.core.snapshot import SlotState, WaitReason
from tests.unit.core.schedulers import (
    TRAITS,
    applied,
    behind,
    live,
    planned,
    scheduler,
    submit,
    turn,
)


# Any: of every setting's type
def make(kv_tokens: int = 400, **settings: Any) -> Scheduler:
    traits = replace(TRAITS, kv_tokens=kv_tokens, model_len_max=200)
    return scheduler(traits=traits, **{"max_num_seqs": 4, "max_num_batched_tokens": 64, **settings})


def request(name: str, prompt: tuple[int, ...]) -> Request:
    return live(name, prompt, max_tokens=50)


def reasons(one: Scheduler, now: float = 1.0) -> dict[str, WaitReason]:
    return {each.request_id: each.reason for each in one.detail(now).waiting}


def test_stretches_add_up_to_what_is_used_and_shared_ones_name_every_holder() -> None:
    """Guards the memory map: what is drawn is what the ledger counts."""
    one = make()
    common = tuple(range(40))
    one.submit(request("a", (*common, 100)), 0.0)
    turn(one)
    one.submit(request("b", (*common, 101)), 0.0)
    turn(one)
    stretches = one.detail(0.0).stretches
    assert sum(each.end - each.start for each in stretches) == one.snapshot().kv_used
    (shared,) = (each for each in stretches if len(each.slots) == 2)
    assert (shared.start, shared.end) == (0, 40)
    for slot in shared.slots:
        own = [each for each in stretches if slot in each.slots]
        assert sorted(each.start for each in own) == [0, 40]


@pytest.mark.parametrize("runs_behind", [True, False])
def test_a_suspect_waits_for_one_of_its_kind_only(runs_behind: bool) -> None:
    """Guards the reason: a live suspect does not wait for one in the background."""
    one = make()
    submit(one, behind("a") if runs_behind else live("a"))
    batch = planned(one)
    submit(one, live("b"), behind("c"))
    for (sequence,) in one._registry.by_request.values():
        sequence.history.failed_count, sequence.history.failed_known = SUSPECT_FAILURES, 50
    first = WaitReason.NEXT if runs_behind else WaitReason.TRIAL
    assert reasons(one) == {"b": first, "c": WaitReason.LIVE}
    applied(one, batch)
    assert ("b" in turn(one)[0]) == runs_behind


def test_a_resumed_request_is_prefilled_with_the_tokens_that_it_had() -> None:
    """Guards "prefill 30 of 45": the end of it is not that of the prompt."""
    one = make()
    resumed = replace(request("a", tuple(range(40))), resumed=((7,) * 5,))
    one.submit(resumed, 0.0)
    planned(one)
    (view,) = one.detail(0.0).slots
    assert (view.state, view.token_count, view.known_count) == (SlotState.PREFILLING, 0, 45)


def test_a_prompt_is_prefilled_until_its_pass_is_back() -> None:
    """Guards what people see of a pass that takes long: planned is not computed."""
    one = make()
    one.submit(request("a", tuple(range(40))), 0.0)
    batch = planned(one)
    assert [view.state for view in one.detail(0.0).slots] == [SlotState.PREFILLING]
    assert one.snapshot().prefilling_count == 1
    applied(one, batch)
    one.plan(0.0)
    assert [view.state for view in one.detail(0.0).slots] == [SlotState.GENERATING]
    assert one.snapshot().prefilling_count == 0


def test_a_full_house_is_told_as_such() -> None:
    """Guards the reason when every slot is taken."""
    one = make(max_num_seqs=1)
    for name, first in (("a", 1), ("b", 2)):
        one.submit(request(name, (first, first, first)), 0.0)
    turn(one)
    assert reasons(one) == {"b": WaitReason.SLOT}


def test_the_one_without_room_waits_for_memory_and_those_behind_it_for_their_turn() -> None:
    """Guards the reasons when memory is short."""
    one = make(kv_tokens=200, max_num_batched_tokens=200, prefill_chunk=200)
    for at, name in enumerate(("a", "b", "c")):
        one.submit(request(name, tuple((at * 50 + each) for each in range(120))), 0.0)
    turn(one)
    assert reasons(one) == {"b": WaitReason.MEMORY, "c": WaitReason.TURN}


def test_one_that_waits_for_a_prefix_lets_others_pass() -> None:
    """Guards the reason of a request whose prefix is being computed by another."""
    one = make(prefill_chunk=16, max_num_batched_tokens=200)
    common = tuple(range(100))
    one.submit(request("a", (*common, 150)), 0.0)
    turn(one)
    submit(one, request("b", (*common, 151)), request("c", (190, 191)))
    assert reasons(one) == {"b": WaitReason.PREFIX, "c": WaitReason.NEXT}
    turn(one)
    assert reasons(one) == {"b": WaitReason.PREFIX}
    assert one.snapshot().deferred_count == 1


def test_a_group_that_has_not_departed_is_waited_for() -> None:
    """Guards the reason under the group strategies."""
    one = make(strategy=Strategy.DYNAMIC, wait_s=5.0)
    one.submit(request("a", (1, 2)), 0.0)
    assert one.plan(0.0) is None
    assert reasons(one) == {"a": WaitReason.GROUP}


def test_drawing_changes_nothing() -> None:
    """Guards the scheduler against those who look at it."""
    one = make(max_num_seqs=1)
    for name in ("a", "b", "c"):
        one.submit(request(name, (1, 2, 3)), 0.0)
    turn(one)
    before = one.snapshot()
    one.detail(1.0)
    assert one.snapshot() == before
    one.check()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"max_num_seqs": 1}, WaitReason.SLOT), ({"max_num_batched_tokens": 4}, WaitReason.BUDGET)],
)
def test_background_requests_that_no_admission_looks_at_are_not_read(
    settings: dict[str, int], reason: WaitReason
) -> None:
    """Guards invariant 11: each look read every waiting prompt, and again for each who ran."""
    one = make(**settings)
    for name in ("a", "b", "c"):
        one.submit(behind(name, tuple(range(100)), max_tokens=50), 0.0)
    turn(one)
    read_before = one.counters["prefix_tokens_read"]
    assert reasons(one) == {"b": reason, "c": reason}
    assert one.counters["prefix_tokens_read"] == read_before


def test_nobody_behind_the_one_without_room_is_read() -> None:
    """Guards invariant 11: admission ends at the one that waits for memory, and so does a look."""
    one = make(kv_tokens=200, max_num_batched_tokens=200, prefill_chunk=200)
    common = tuple(range(120))
    one.submit(request("a", common), 0.0)
    turn(one)
    one.submit(request("b", tuple(range(50, 170))), 0.0)
    reasons(one)
    read_before = one.counters["prefix_tokens_read"]
    one.submit(request("c", common), 0.0)
    assert reasons(one) == {"b": WaitReason.MEMORY, "c": WaitReason.TURN}
    assert one.counters["prefix_tokens_read"] == read_before


def test_a_look_reads_no_more_than_an_admission() -> None:
    """Guards invariant 11: as many as admission looks at, however many wait for one prefix."""
    one = make(prefill_chunk=16, max_num_batched_tokens=200)
    common = tuple(range(100))
    for at in range(LOOKAHEAD + 2):
        one.submit(request(f"{at:03}", (*common, at)), 0.0)
    turn(one)
    found = Counter(reasons(one).values())
    assert found == {WaitReason.PREFIX: LOOKAHEAD, WaitReason.TURN: 1}
