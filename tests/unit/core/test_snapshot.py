"""The detail for people: memory by stretches, and a reason for everyone who waits."""

from collections import Counter
from dataclasses import replace

import pytest

from jitney.core.admission import LOOKAHEAD
from jitney.core.backend import Traits
from jitney.core.batch import Batch, Outcome, Sample
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings, Strategy
from jitney.core.snapshot import SlotState, WaitReason


def make(kv_tokens: int = 400, **settings: int | str | float) -> Scheduler:
    values = {"model_len_max": 200, "max_num_seqs": 4, "max_num_batched_tokens": 64, **settings}
    traits = Traits(
        name="none", slots_max=8, kv_tokens=kv_tokens, model_len_max=200, batch_invariant=True
    )
    return Scheduler(SchedulerSettings(**values), traits, ())  # type: ignore[arg-type]


def request(name: str, prompt: tuple[int, ...]) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=50)
    return Request(id=RequestId(name), prompt=prompt, params=params, seed=1)


def run(scheduler: Scheduler, now: float) -> Batch:
    planned = scheduler.plan(now)
    assert planned is not None
    entries = planned.batch.entries
    samples = tuple(Sample(7 if entry.wants_token else None) for entry in entries)
    scheduler.apply(planned, Outcome(planned.batch.number, samples, 0.01), now)
    return planned.batch


def reasons(scheduler: Scheduler, now: float = 1.0) -> dict[str, WaitReason]:
    return {each.request_id: each.reason for each in scheduler.detail(now).waiting}


def test_stretches_add_up_to_what_is_used_and_shared_ones_name_every_holder() -> None:
    """Guards the memory map: what is drawn is what the ledger counts."""
    scheduler = make()
    common = tuple(range(40))
    scheduler.submit(request("a", (*common, 100)), 0.0)
    run(scheduler, 0.0)
    scheduler.submit(request("b", (*common, 101)), 0.0)
    run(scheduler, 0.0)
    stretches = scheduler.detail(0.0).stretches
    assert sum(each.end - each.start for each in stretches) == scheduler.snapshot().kv_used
    (shared,) = (each for each in stretches if len(each.slots) == 2)
    assert (shared.start, shared.end) == (0, 40)
    for slot in shared.slots:
        own = [each for each in stretches if slot in each.slots]
        assert sorted(each.start for each in own) == [0, 40]


def test_a_resumed_request_is_prefilled_with_the_tokens_that_it_had() -> None:
    """Guards "prefill 30 of 45": the end of it is not that of the prompt."""
    scheduler = make()
    resumed = replace(request("a", tuple(range(40))), resumed=((7,) * 5,))
    scheduler.submit(resumed, 0.0)
    assert scheduler.plan(0.0) is not None
    (view,) = scheduler.detail(0.0).slots
    assert (view.state, view.token_count, view.known_count) == (SlotState.PREFILLING, 0, 45)


def test_a_prompt_is_prefilled_until_its_pass_is_back() -> None:
    """Guards what people see of a pass that takes long: planned is not computed."""
    scheduler = make()
    scheduler.submit(request("a", tuple(range(40))), 0.0)
    planned = scheduler.plan(0.0)
    assert planned is not None
    assert [view.state for view in scheduler.detail(0.0).slots] == [SlotState.PREFILLING]
    assert scheduler.snapshot().prefilling_count == 1
    entries = planned.batch.entries
    samples = tuple(Sample(7 if entry.wants_token else None) for entry in entries)
    scheduler.apply(planned, Outcome(planned.batch.number, samples, 0.01), 0.0)
    scheduler.plan(0.0)
    assert [view.state for view in scheduler.detail(0.0).slots] == [SlotState.GENERATING]
    assert scheduler.snapshot().prefilling_count == 0


def test_a_full_house_is_told_as_such() -> None:
    """Guards the reason when every slot is taken."""
    scheduler = make(max_num_seqs=1)
    for name, first in (("a", 1), ("b", 2)):
        scheduler.submit(request(name, (first, first, first)), 0.0)
    run(scheduler, 0.0)
    assert reasons(scheduler) == {"b": WaitReason.SLOT}


def test_the_one_without_room_waits_for_memory_and_those_behind_it_for_their_turn() -> None:
    """Guards the reasons when memory is short."""
    scheduler = make(kv_tokens=200, max_num_batched_tokens=200, prefill_chunk=200)
    for at, name in enumerate(("a", "b", "c")):
        scheduler.submit(request(name, tuple((at * 50 + each) for each in range(120))), 0.0)
    run(scheduler, 0.0)
    assert reasons(scheduler) == {"b": WaitReason.MEMORY, "c": WaitReason.TURN}


def test_one_that_waits_for_a_prefix_lets_others_pass() -> None:
    """Guards the reason of a request whose prefix is being computed by another."""
    scheduler = make(prefill_chunk=16, max_num_batched_tokens=200)
    common = tuple(range(100))
    scheduler.submit(request("a", (*common, 150)), 0.0)
    run(scheduler, 0.0)
    scheduler.submit(request("b", (*common, 151)), 0.0)
    scheduler.submit(request("c", (190, 191)), 0.0)
    assert reasons(scheduler) == {"b": WaitReason.PREFIX, "c": WaitReason.NEXT}
    run(scheduler, 0.0)
    assert reasons(scheduler) == {"b": WaitReason.PREFIX}
    assert scheduler.snapshot().deferred_count == 1


def test_a_group_that_has_not_departed_is_waited_for() -> None:
    """Guards the reason under the group strategies."""
    scheduler = make(strategy=Strategy.DYNAMIC, wait_s=5.0)
    scheduler.submit(request("a", (1, 2)), 0.0)
    assert scheduler.plan(0.0) is None
    assert reasons(scheduler) == {"a": WaitReason.GROUP}


def test_drawing_changes_nothing() -> None:
    """Guards the scheduler against those who look at it."""
    scheduler = make(max_num_seqs=1)
    for name in ("a", "b", "c"):
        scheduler.submit(request(name, (1, 2, 3)), 0.0)
    run(scheduler, 0.0)
    before = scheduler.snapshot()
    scheduler.detail(1.0)
    assert scheduler.snapshot() == before
    scheduler.check()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"max_num_seqs": 1}, WaitReason.SLOT), ({"max_num_batched_tokens": 4}, WaitReason.BUDGET)],
)
def test_background_requests_that_no_admission_looks_at_are_not_read(
    settings: dict[str, int], reason: WaitReason
) -> None:
    """Guards invariant 11: each look read every waiting prompt, and again for each who ran."""
    scheduler = make(**settings)
    for name in ("a", "b", "c"):
        behind = replace(request(name, tuple(range(100))), is_background=True)
        scheduler.submit(behind, 0.0)
    run(scheduler, 0.0)
    read_before = scheduler.counters["prefix_tokens_read"]
    assert reasons(scheduler) == {"b": reason, "c": reason}
    assert scheduler.counters["prefix_tokens_read"] == read_before


def test_nobody_behind_the_one_without_room_is_read() -> None:
    """Guards invariant 11: admission ends at the one that waits for memory, and so does a look."""
    scheduler = make(kv_tokens=200, max_num_batched_tokens=200, prefill_chunk=200)
    common = tuple(range(120))
    scheduler.submit(request("a", common), 0.0)
    run(scheduler, 0.0)
    scheduler.submit(request("b", tuple(range(50, 170))), 0.0)
    reasons(scheduler)
    read_before = scheduler.counters["prefix_tokens_read"]
    scheduler.submit(request("c", common), 0.0)
    assert reasons(scheduler) == {"b": WaitReason.MEMORY, "c": WaitReason.TURN}
    assert scheduler.counters["prefix_tokens_read"] == read_before


def test_a_look_reads_no_more_than_an_admission() -> None:
    """Guards invariant 11: as many as admission looks at, however many wait for one prefix."""
    scheduler = make(prefill_chunk=16, max_num_batched_tokens=200)
    common = tuple(range(100))
    for at in range(LOOKAHEAD + 2):
        scheduler.submit(request(f"{at:03}", (*common, at)), 0.0)
    run(scheduler, 0.0)
    found = Counter(reasons(scheduler).values())
    assert found == {WaitReason.PREFIX: LOOKAHEAD, WaitReason.TURN: 1}
