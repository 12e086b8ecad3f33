"""The cost of a tick, learnt from ticks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core.cost import FORGET, SPAN_UNKNOWN, CostModel


@given(base=st.floats(1e-4, 0.1), decode=st.floats(1e-5, 1e-2), prefill=st.floats(1e-5, 1e-2))
def test_it_finds_the_line_it_is_shown(base: float, decode: float, prefill: float) -> None:
    """Guards `bounded-stall`: what fits in a given time is read off the fitted line."""
    cost = CostModel()
    counts = [number * 37 % 300 for number in range(60)]
    for number, count in enumerate(counts):
        cost.observe(number % 7, count, base + decode * (number % 7) + prefill * count)
    decodes_s = base + 4 * decode
    within = cost.prefill_within(decodes_s + max(decodes_s, 100 * prefill), 4)
    known = 2 * max(count * FORGET ** (59 - number) for number, count in enumerate(counts))
    assert within == pytest.approx(min(max(100, decodes_s / prefill), known), rel=0.02)


def test_what_is_not_known_is_found_out_in_small_steps() -> None:
    """Guards the first long prompt on a slow machine, which stopped everybody for seconds."""
    cost = CostModel()
    assert cost.prefill_within(1.0, 1) == SPAN_UNKNOWN
    for _ in range(20):
        cost.observe(1, 0, 0.01)
    assert cost.prefill_within(1.0, 1) == SPAN_UNKNOWN
    seen = []
    for _ in range(6):
        seen.append(cost.prefill_within(1.0, 1))
        cost.observe(1, seen[-1], 0.01)
    assert seen == [64, 128, 256, 512, 1024, 2048]
    assert cost.tokens_per_s > 1000


def test_one_long_prefill_does_not_outweigh_many_decodes() -> None:
    """Guards relative errors: a prefill that took a fifth longer than the line moves it little."""
    cost = CostModel()
    for _ in range(30):
        cost.observe(4, 0, 0.02)
        cost.observe(4, 40, 0.06)
    cost.observe(0, 2048, 2.4)
    assert cost.prefill_within(0.1, 4) == pytest.approx(80, abs=16)


def test_new_prompts_get_half_of_every_tick() -> None:
    """Guards invariant 8 on a machine whose decodes alone take longer than the target."""
    cost = CostModel()
    for number in range(60):
        cost.observe(number % 3, number % 50, 0.2 + 0.01 * (number % 50))
    assert cost.prefill_within(0.1, 1) == pytest.approx(20, abs=2)


def test_a_tick_that_took_no_time_teaches_nothing() -> None:
    """Guards against division by zero, on a clock too coarse for small batches."""
    cost = CostModel()
    cost.observe(1, 0, 0.0)
    assert (cost.observed_count, cost.tokens_per_s) == (0, 0.0)
