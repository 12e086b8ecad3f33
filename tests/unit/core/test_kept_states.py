"""Which kept state a prompt may go on from, where slots cannot be cut back."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core.batch import Fault, Outcome, Sample
from jitney.core.kept_states import StateIndex
from jitney.core.limits import KEPT_STATE_EVERY, PREFIX_STRIDE
from jitney.core.prefix import Chain, Holding, Match
from jitney.core.scheduler import Scheduler
from tests.unit.core.schedulers import TRAITS, applied, live, planned, scheduler, submit

SCOPE = "scope"
TEXT = list(range(100, 200))


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


PROMPT = tuple(range(20, 60))
ANSWER = (5,) * 4
"""What `applied` has each sequence say."""


def computed(one: Scheduler, prompt: tuple[int, ...], *, n: int = 1) -> int:
    """Prompt tokens that a request with this prompt has computed, from its start to its end."""
    before = one.counters["computed_prompt_tokens"]
    name = f"{one.counters['accepted']}"
    submit(one, live(name, prompt, max_tokens=len(ANSWER), n=n))
    while (batch := one.plan(0.0)) is not None:
        applied(one, batch)
    return one.counters["computed_prompt_tokens"] - before


def recurrent(**others: Any) -> Scheduler:  # Any: of every trait's type
    return scheduler(4, replace(TRAITS, state_bytes=8, **others))


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
    assert computed(recurrent(), PROMPT, n=3) == len(PROMPT) - 1 + 3


def test_long_prompts_with_one_beginning_share_it() -> None:
    """Guards agents whose system prompt is the same and whose question is another."""
    one = recurrent(kv_tokens=20_000, model_len_max=4_000)
    base = tuple(range(100, 2_200))
    computed(one, (*base, 1, 1, 1))
    assert computed(one, (*base, 2, 2, 2)) == len(base) + 3 - 2 * KEPT_STATE_EVERY


def full(**others: Any) -> Scheduler:
    """One of four sequences whose slots are all full of what unrelated prompts left."""
    one = scheduler(
        4, replace(TRAITS, state_bytes=8, kv_tokens=90_000, model_len_max=4_000, **others)
    )
    for number in range(40):
        computed(one, tuple(range(10_000 + 100 * number, 10_080 + 100 * number)))
    return one


def test_a_common_beginning_is_shared_where_all_slots_are_full() -> None:
    """Guards the first copy of a prompt: its own last one must not push it out."""
    one, base = full(slots_max=16), tuple(range(100, 1_600))
    computed(one, (*base, *range(3_000, 3_200)))
    found = [computed(one, (*base, *range(at, at + 200))) for at in (4_000, 5_000, 6_000)]
    assert found == [len(base) + 200 - KEPT_STATE_EVERY] * 3


def test_a_long_prompt_leaves_conversations_alone() -> None:
    """Guards those who come back: its copies on the way are evicted before theirs."""
    one = full(slots_max=16)
    talks = [tuple(range(20_000 + 1_000 * each, 20_000 + 1_000 * each + 500)) for each in range(3)]
    for talk in talks:
        computed(one, talk)
    computed(one, tuple(range(40_000, 43_900)))
    assert [computed(one, (*talk, *ANSWER, 7, 7)) for talk in talks] == [3, 3, 3]


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
    one = scheduler(8, replace(TRAITS, state_bytes=8))
    assert computed(one, PROMPT, n=2) == 2 * len(PROMPT)
    assert one.counters["kept_states"] == one.counters["prefix_waits"] == 0
