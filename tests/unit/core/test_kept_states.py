"""Which kept state a prompt may go on from, where slots cannot be cut back."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core import prefix
from jitney.core.batch import Fault, Outcome, Sample
from jitney.core.events import FinishReason
from jitney.core.kept_states import StateIndex
from jitney.core.limits import PREFIX_STRIDE
from jitney.core.prefix import Chain, Holding, Match
from jitney.core.request import RequestId
from jitney.core.scheduler import PlannedBatch, Scheduler
from tests.unit.core.schedulers import TRAITS, applied, behind, live, planned, scheduler, submit

SCOPE = "scope"
TEXT = list(range(100, 200))
EVERY = 1024
"""Where copies are kept on the way."""


def kept(index: StateIndex, slot: int, tokens: list[int], scope: str = SCOPE) -> Holding:
    """A state that stands after these tokens."""
    holding = Holding(slot, Chain(scope, list(tokens)), len(tokens))
    holding.is_cached = True
    index.extend(holding)
    return holding


def promised(index: StateIndex, slot: int, at: int, *, is_background: bool = False) -> Holding:
    """One that runs, of which a copy will be kept at this position."""
    holding = Holding(slot, Chain(SCOPE, list(TEXT)), 3, is_background=is_background)
    holding.keeps_at = at
    index.extend(holding)
    return holding


def longest(index: StateIndex, tokens: list[int], *, is_background: bool = False) -> Match:
    return index.longest(Chain(SCOPE, tokens), len(tokens) - 1, is_background=is_background)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=1, max_size=6),
    st.lists(st.integers(0, 1), min_size=2, max_size=60),
)
def test_it_finds_what_a_plain_search_finds(held: list[list[int]], tokens: list[int]) -> None:
    """Guards reuse: a state is found where it is a whole prefix, and nowhere else."""
    index = StateIndex()
    base = [0] * PREFIX_STRIDE
    holdings = [kept(index, slot, base + each) for slot, each in enumerate(held)]
    wanted = base + tokens
    whole = [base + each for each in held if wanted[: len(base + each)] == base + each]
    best = max((len(each) for each in whole if len(each) < len(wanted)), default=0)
    found = longest(index, wanted)
    assert found.length == best
    assert (found.holding is None) == (best == 0)
    index.check(holdings)
    for holding in holdings:
        index.trim(holding, 0)
    assert longest(index, wanted) == Match(None, 0, 0)


@pytest.mark.parametrize("length", [40, 41, 47])
def test_a_state_with_all_tokens_is_of_no_use(length: int) -> None:
    """Guards the last token of a prompt: only computing it gives the next one."""
    index = StateIndex()
    kept(index, 0, TEXT[:length])
    assert longest(index, TEXT[:length]).holding is None
    assert longest(index, TEXT[: length + 1]).length == length


def test_the_right_one_is_found_among_many_that_begin_alike() -> None:
    """Guards answers to short questions behind one long prompt: a miss computes all of it."""
    index = StateIndex()
    for slot in range(40):
        kept(index, slot, [*TEXT[:40], slot, slot])
    assert longest(index, [*TEXT[:40], 39, 39, 1, 2]).length == 42


def test_another_scope_finds_nothing() -> None:
    """Guards invariant 6: equal tokens of another tenant are not there."""
    index = StateIndex()
    kept(index, 0, TEXT[:40], "other")
    assert longest(index, TEXT).holding is None


def test_a_running_sequence_is_waited_for_and_not_used() -> None:
    """Guards a copy of a state that has moved on; newcomers wait for the copy that will be kept."""
    index = StateIndex()
    promised(index, 0, 64)
    assert longest(index, TEXT) == Match(None, 0, 64)
    assert longest(index, TEXT[:64]) == Match(None, 0, 0)
    own = kept(index, 1, TEXT[:20])
    assert longest(index, TEXT) == Match(own, 20, 64)


def test_a_live_sequence_does_not_wait_for_a_background_one() -> None:
    """Guards the first token of a live request."""
    index = StateIndex()
    promised(index, 0, 64, is_background=True)
    assert longest(index, TEXT).length_awaited == 0
    assert longest(index, TEXT, is_background=True).length_awaited == 64


def test_equal_keys_of_different_texts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards invariant 6 where hashing fails altogether."""

    def depth(pair: tuple[object, object]) -> int:
        before, _ = pair
        return before + 1 if isinstance(before, int) else 1

    monkeypatch.setattr(prefix, "hash", depth, raising=False)
    index = StateIndex()
    kept(index, 0, list(range(64)))
    promised(index, 1, 64)
    assert longest(index, list(range(300, 380))) == Match(None, 0, 0)


PROMPT = tuple(range(20, 60))
ANSWER = (5,) * 4
"""What `applied` has each sequence say."""


def computed(one: Scheduler, *prompts: tuple[int, ...], is_background: bool = False) -> int:
    """Prompt tokens that requests with these prompts have computed, from their start to their
    end."""
    before, make = one.counters["computed_prompt_tokens"], behind if is_background else live
    for prompt in prompts:
        submit(one, make(f"{one.counters['accepted']}", prompt, max_tokens=len(ANSWER)))
    while (batch := one.plan(0.0)) is not None:
        applied(one, batch)
    return one.counters["computed_prompt_tokens"] - before


def computed_once(one: Scheduler, prompt: tuple[int, ...], n: int) -> int:
    """The same for a request of several completions."""
    submit(one, live("a", prompt, max_tokens=len(ANSWER), n=n))
    return computed(one)


def recurrent(max_num_seqs: int = 4, **others: Any) -> Scheduler:  # Any: of every trait's type
    return scheduler(max_num_seqs, replace(TRAITS, state_bytes=8, **others))


def roomy(max_num_seqs: int, slots_max: int) -> Scheduler:
    """One whose memory is short of slots only."""
    return recurrent(max_num_seqs, kv_tokens=90_000, model_len_max=4_000, slots_max=slots_max)


def test_a_conversation_goes_on_from_where_it_ended() -> None:
    """Guards the second turn: nothing of the first one is computed again but its last token."""
    one = recurrent()
    assert computed(one, PROMPT) == len(PROMPT)
    assert computed(one, (*PROMPT, *ANSWER, 7, 7, 7)) == 4


def test_a_conversation_without_the_answer_goes_on_from_its_prompt() -> None:
    """Guards agents that leave out what the model thought: the copy before the answer is there."""
    one = recurrent()
    computed(one, PROMPT)
    assert computed(one, (*PROMPT, 8, 8, 8)) == 4
    assert computed(one, (*PROMPT, 6, 6)) == 3, "whoever found the copy left it"


def test_completions_of_one_prompt_compute_it_once() -> None:
    """Guards `n`: the others wait for the copy."""
    assert computed_once(recurrent(), PROMPT, 3) == len(PROMPT) - 1 + 3


def test_without_reuse_too_and_nothing_of_it_stays() -> None:
    """Guards `n` where prefix caching is off: it is one request that shares, and it ends."""
    one = scheduler(4, replace(TRAITS, state_bytes=8), enable_prefix_caching=False)
    assert computed_once(one, PROMPT, 6) == len(PROMPT) - 1 + 6
    assert one.snapshot().cached_count == 0
    assert computed(one, PROMPT) == len(PROMPT)


def test_many_go_on_from_one_answer() -> None:
    """Guards branches of a conversation: the first of them leaves the state to the others."""
    one = roomy(16, 36)
    talk = (*PROMPT, *ANSWER * 20)
    submit(one, live("a", PROMPT, max_tokens=80))
    computed(one)
    assert computed(one, *((*talk, each, each, each) for each in range(8))) == 8 * 4


def test_long_prompts_with_one_beginning_share_it() -> None:
    """Guards agents whose system prompt is the same and whose question is another."""
    one = recurrent(kv_tokens=20_000, model_len_max=4_000)
    base = tuple(range(100, 2_200))
    computed(one, (*base, 1, 1, 1))
    assert computed(one, (*base, 2, 2, 2)) == len(base) + 3 - 2 * EVERY


def full(slots_max: int) -> Scheduler:
    """One of four sequences whose slots are all full of what unrelated prompts left."""
    one = roomy(4, slots_max)
    for number in range(40):
        computed(one, tuple(range(10_000 + 100 * number, 10_080 + 100 * number)))
    return one


def test_a_common_beginning_is_shared_where_all_slots_are_full() -> None:
    """Guards the first copy of a prompt: its own last one must not push it out."""
    one, base = full(16), tuple(range(100, 1_600))
    computed(one, (*base, *range(3_000, 3_200)))
    found = [computed(one, (*base, *range(at, at + 200))) for at in (4_000, 5_000, 6_000)]
    assert found == [len(base) + 200 - EVERY] * 3


def test_a_long_prompt_leaves_conversations_alone() -> None:
    """Guards those who come back: its copies on the way are evicted before theirs."""
    one = full(16)
    talks = [tuple(range(20_000 + 1_000 * each, 20_000 + 1_000 * each + 500)) for each in range(3)]
    for talk in talks:
        computed(one, talk)
    computed(one, tuple(range(40_000, 43_900)))
    assert [computed(one, (*talk, *ANSWER, 7, 7)) for talk in talks] == [3, 3, 3]


def test_a_common_beginning_that_is_used_stays() -> None:
    """Guards what all agents begin with: other prompts' first copies must not push it out."""
    one, base = roomy(4, 24), tuple(range(100, 1_600))
    computed(one, (*base, *range(200)))
    for at in range(100_000, 130_000, 3_000):
        assert computed(one, (*base, *range(at, at + 200))) == len(base) + 200 - EVERY
        computed(one, tuple(range(at + 1_000, at + 2_500)))


def test_background_prompts_leave_a_common_beginning_alone() -> None:
    """Guards live requests: what background ones keep is evicted before it."""
    one, base = full(16), tuple(range(100, 1_600))
    computed(one, base)
    for at in range(100_000, 130_000, 3_000):
        computed(one, tuple(range(at, at + 1_500)), is_background=True)
    assert computed(one, (*base[:1_200], 7, 7)) == 1_202 - EVERY


def test_conversations_are_found_where_few_slots_are_spare() -> None:
    """Guards those who come back: of a state that is kept, none is kept shortly before it."""
    one = roomy(16, 22)
    talks = [tuple(range(at, at + 1_500)) for at in range(10_000, 150_000, 10_000)]
    computed(one, *talks)
    assert computed(one, *((*talk, *ANSWER, 7, 7, 7) for talk in talks)) == len(talks) * 4


def in_flight(one: Scheduler) -> tuple[PlannedBatch, PlannedBatch]:
    """Two batches under way, both with the same sequence."""
    submit(one, live("a", PROMPT, max_tokens=30))
    for _ in range(2):
        applied(one, planned(one))
    return planned(one), planned(one)


def test_what_a_cancelled_one_computes_of_unknown_tokens_is_not_kept() -> None:
    """Guards the next prompt: nobody knows what the state stands for."""
    one = recurrent()
    first, second = in_flight(one)
    one.cancel(RequestId("a"), 0.0)
    one.check()
    applied(one, first)
    applied(one, second)
    assert one.snapshot().cached_count == 1, "the copy before the last token of its prompt"


def test_a_state_is_forgotten_whose_last_batch_has_a_fault() -> None:
    """Guards the next turn: the sequence had ended by its text when the fault came."""
    one = recurrent()
    first, second = in_flight(one)
    applied(one, first)
    one.finish(RequestId("a"), 0, FinishReason.STOP, 0.0)
    fault = Sample(fault=Fault("its logits were no numbers"))
    one.apply(second, Outcome.of(second.batch.number, (fault,), 0.01), 0.0)
    one.check()
    assert one.snapshot().cached_count == 0
    assert computed(one, (*PROMPT, 5, 5, 7, 7)) == len(PROMPT) + 4


def test_copies_of_a_failed_sequence_are_forgotten() -> None:
    """Guards the next request: a copy may hold what made the first one fail."""
    one = recurrent()
    submit(one, live("a", PROMPT, max_tokens=4))
    applied(one, planned(one))
    batch = planned(one)
    assert one.counters["kept_states"] == 1
    fault = Sample(fault=Fault("its logits were no numbers"))
    one.apply(batch, Outcome.of(batch.batch.number, (fault,), 0.01), 0.0)
    one.check()
    assert computed(one, PROMPT) == len(PROMPT)


@pytest.mark.parametrize(("limit", "is_saved"), [(2_000, True), (999, False)])
def test_a_state_counts_as_saved_memory(limit: int, is_saved: bool) -> None:
    """Guards memory beside that of the model: a state is larger than many tokens."""
    traits = replace(TRAITS, state_bytes=1_000, kv_tokens=100, kv_bytes_per_token=1)
    one = scheduler(4, traits, saved_limit=limit)
    submit(one, live("a", 40, max_tokens=40), live("b", 40, max_tokens=40))
    computed(one)
    assert bool(one.counters["preempted_saved"]) == is_saved
    assert bool(one.counters["preempted_recomputed"]) != is_saved


def test_a_router_is_told_of_whole_states_only() -> None:
    """Guards the choice of an engine: half of a state saves nothing."""
    one = recurrent()
    computed(one, PROMPT)
    chain = Chain("scope ", list(PROMPT))
    found = [depth for depth in range(1, 6) if chain.key(depth) in one.heads(1)]
    assert found == [4, 5], "where the copy ends, and where the answer does"


def test_short_prompts_take_one_tick() -> None:
    """Guards the first token: a copy of a few tokens is not worth a tick."""
    one = recurrent()
    submit(one, live("a", PROMPT[:20], max_tokens=1))
    applied(one, planned(one))
    assert one.plan(0.0) is None


def test_without_a_spare_slot_no_copy_is_kept_and_nobody_waits() -> None:
    """Guards a promise that cannot be held."""
    one = recurrent(8)
    assert computed_once(one, PROMPT, 2) == 2 * len(PROMPT)
    assert one.counters["kept_states"] == one.counters["prefix_waits"] == 0
