"""How the budget of a tick is split: never exceeded, never idle, nobody starved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core.rules.cost import CostModel
from jitney.core.rules.mix import PREFILL_MIN, Budget, Prefill, split_budget, within_stall
from jitney.core.scheduler_settings import Mix


def slow_model() -> CostModel:
    """Has seen that a prefill token takes ten milliseconds."""
    cost = CostModel()
    for count in range(1, 30):
        cost.observe(count % 4, count * 8, 0.001 + 0.01 * count * 8)
    return cost


@given(
    mix=st.sampled_from(list(Mix)),
    decode_count=st.integers(0, 20),
    wanted=st.lists(
        st.builds(Prefill, st.integers(2, 2000), st.sampled_from((None, "a", "b"))),
        max_size=8,
    ),
    spare=st.integers(0, 600),
    chunk=st.integers(1, 512),
    is_slow=st.booleans(),
)
def test_every_mix_keeps_the_budget_and_makes_progress(
    mix: Mix, decode_count: int, wanted: list[Prefill], spare: int, chunk: int, is_slow: bool
) -> None:
    """Guards invariants 2 and 8: no tick too large, none empty while there is work."""
    if mix is Mix.SEPARATE and wanted:
        decode_count = 0  # never both
    budget = Budget(max(1, decode_count + len(wanted)) + spare, chunk, 0.05)
    cost = slow_model() if is_slow else CostModel()
    share = split_budget(mix, decode_count, wanted, budget, cost)
    assert share.decode_count + sum(share.spans) <= budget.tokens
    assert 0 <= share.decode_count <= decode_count
    assert len(share.spans) == len(wanted)
    for span, want in zip(share.spans, wanted, strict=True):
        assert 0 <= span <= min(want.tokens, chunk)
    assert share.decode_count + sum(share.spans) > 0 or not (decode_count or wanted)
    if wanted and mix is not Mix.PREFILL_FIRST:
        assert share.spans[0] > 0
    if decode_count and mix is not Mix.PREFILL_FIRST:
        assert share.decode_count > 0


@pytest.mark.parametrize(
    ("mix", "decodes", "spans"),
    [
        (Mix.DECODE_FIRST, 6, (4, 0)),
        (Mix.PREFILL_FIRST, 0, (8, 2)),
        (Mix.BALANCED, 5, (5, 0)),
        (Mix.BOUNDED_STALL, 6, (4, 0)),
    ],
)
def test_who_goes_first_is_the_mix(mix: Mix, decodes: int, spans: tuple[int, ...]) -> None:
    """Guards the meaning of each name, at a budget that is not enough for all."""
    share = split_budget(mix, 6, [Prefill(50), Prefill(50)], Budget(10, 8, 0.05), CostModel())
    assert (share.decode_count, share.spans) == (decodes, spans)


def test_balanced_leaves_decodes_what_a_chunk_does_not_use() -> None:
    """Guards those who generate: a long prompt uses no more of a tick than its chunk."""
    share = split_budget(Mix.BALANCED, 12, [Prefill(100)], Budget(16, 4, 0.05), CostModel())
    assert (share.decode_count, share.spans) == (12, (4,))


def test_separate_ticks_are_sized_apart() -> None:
    """Guards `prefill_batch_size` and `decode_batch_size`: sequences, whatever their tokens."""
    budget = Budget(100, 8, 0.05, prefill_batch_size=2, decode_batch_size=3)
    share = split_budget(Mix.SEPARATE, 0, [Prefill(50)] * 4, budget, CostModel())
    assert (share.decode_count, share.spans) == (0, (8, 8, 0, 0))
    share = split_budget(Mix.SEPARATE, 9, [], budget, CostModel())
    assert (share.decode_count, share.spans) == (3, ())


def test_a_tick_of_prefills_that_others_wait_for_is_bounded() -> None:
    """Guards those who generate under `separate`: one tick of 2,048 tokens took six seconds."""
    budget = Budget(2048, 512, 0.5)
    assert within_stall(budget, CostModel()).tokens == 64
    learnt = CostModel()
    for _ in range(20):
        learnt.observe(0, 32, 0.32)
        learnt.observe(4, 0, 0.01)
    assert 32 < within_stall(budget, learnt).tokens < 64
    assert within_stall(Budget(2048, 512, 0.001), learnt).tokens == PREFILL_MIN


def test_bounded_stall_prefills_as_much_as_the_time_allows_and_never_nothing() -> None:
    """Guards the inter-token time, and the prompt that would miss it by its mere presence."""
    wanted = [Prefill(1000)]
    share = split_budget(Mix.BOUNDED_STALL, 2, wanted, Budget(512, 512, 0.5), slow_model())
    assert PREFILL_MIN < share.spans[0] < 80
    share = split_budget(
        Mix.BOUNDED_STALL, 2, [Prefill(1000)], Budget(512, 512, 0.0001), slow_model()
    )
    assert share.spans == (PREFILL_MIN,)
    share = split_budget(
        Mix.BOUNDED_STALL, 0, [Prefill(1000)], Budget(512, 512, 0.0001), slow_model()
    )
    assert share.spans == (512,)


def test_tenants_share_the_prefill_of_a_tick_alike() -> None:
    """Guards short prompts: five long ones of another tenant kept them waiting for a minute."""
    long = [Prefill(4000, "a")] * 5
    for short, tokens, expected in ((40, 200, (160, 40)), (400, 200, (100, 100)), (400, 1, (1, 0))):
        wanted = [*long, Prefill(short, "b")]
        share = split_budget(Mix.DECODE_FIRST, 0, wanted, Budget(tokens, 512, 0.1), CostModel())
        assert share.spans == (expected[0], 0, 0, 0, 0, expected[1])


def test_prefill_may_take_as_long_as_the_decodes_beside_it() -> None:
    """Guards new prompts where decodes alone take all of the time there is."""
    learnt = CostModel()
    for _ in range(50):
        learnt.observe(40, 0, 0.2)
        learnt.observe(40, 100, 0.3)
    budget = Budget(512, 512, 0.0001)
    share = split_budget(Mix.BOUNDED_STALL, 40, [Prefill(1000)], budget, learnt)
    assert share.spans[0] == pytest.approx(200, abs=5)
    learnt.observe(40, 16, 100.0)
    share = split_budget(Mix.BOUNDED_STALL, 40, [Prefill(1000)], budget, learnt)
    assert share.spans == (PREFILL_MIN,)
