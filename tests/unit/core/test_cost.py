"""The cost of a tick, learnt from ticks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core.cost import CostModel


@given(base=st.floats(1e-4, 0.1), decode=st.floats(1e-5, 1e-2), prefill=st.floats(1e-5, 1e-2))
def test_it_finds_the_line_it_is_shown(base: float, decode: float, prefill: float) -> None:
    """Guards `bounded-stall`: what fits in a given time is read off the fitted line."""
    cost = CostModel()
    for number in range(60):
        decodes, prefills = number % 7, (number * 37) % 300
        cost.observe(decodes, prefills, base + decode * decodes + prefill * prefills)
    within = cost.prefill_within(base + 4 * decode + 100 * prefill, 4)
    assert within is not None
    assert within == pytest.approx(100, abs=3)


def test_it_says_nothing_before_it_knows() -> None:
    """Guards the first ticks: a guess would throttle prefill for no reason."""
    cost = CostModel()
    for _ in range(7):
        cost.observe(1, 10, 0.01)
    assert cost.prefill_within(1.0, 0) is None
    assert cost.tokens_per_s == pytest.approx(1100.0)


def test_a_tick_that_took_no_time_teaches_nothing() -> None:
    """Guards against division by zero, on a clock too coarse for small batches."""
    cost = CostModel()
    cost.observe(1, 0, 0.0)
    assert (cost.observed_count, cost.tokens_per_s) == (0, 0.0)


def test_time_that_is_over_leaves_no_prefill() -> None:
    """Guards the sign: decodes alone may take longer than the target."""
    cost = CostModel()
    for number in range(40):
        cost.observe(number % 5, number * 10, 0.05 + 0.001 * number * 10)
    assert cost.prefill_within(0.01, 4) == 0
