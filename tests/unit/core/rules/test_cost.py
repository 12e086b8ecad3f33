"""The cost of a tick, learnt from ticks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.core.rules.cost import SPAN_UNKNOWN, CostModel, Fit


@given(base=st.floats(1e-4, 0.1), decode=st.floats(1e-5, 1e-2), prefill=st.floats(1e-5, 1e-2))
def test_it_finds_the_line_it_is_shown(base: float, decode: float, prefill: float) -> None:
    """Guards `bounded-stall`: what fits in a given time is read off the fitted line."""
    cost = CostModel()
    for number in range(60):
        decodes, count = 1 + number % 7, number % 3 * 37
        cost.observe(decodes, count, base + decode * decodes + prefill * count)
    within = cost.prefill_within(base + 4 * decode + 100 * prefill, 4)
    assert within == pytest.approx(100, abs=3)


def test_what_is_not_known_is_found_out_in_a_small_step() -> None:
    """Guards the first long prompt on a slow machine, which stopped everybody for seconds."""
    cost = CostModel()
    assert cost.prefill_within(1.0, 1) == SPAN_UNKNOWN
    for _ in range(20):
        cost.observe(1, 0, 0.01)
    assert cost.prefill_within(1.0, 1) == SPAN_UNKNOWN
    cost.observe(1, SPAN_UNKNOWN, 0.01 + 0.64)
    assert cost.prefill_within(0.1, 1) == 9


def test_prefill_in_every_tick_does_not_make_decodes_seem_dear() -> None:
    """Guards the bound: whoever can keep prefill up must not be able to loosen it."""
    cost, deep_s = CostModel(), 0.001
    for _ in range(20):
        cost.observe(2, 0, 0.02)
    for _ in range(500):
        span = cost.prefill_within(0.1, 2)
        took_s = 0.02 + span * deep_s
        deep_s *= 1.003  # the longer the prompt, the dearer each token
        cost.observe(2, span, took_s)
        assert took_s <= 0.11


@pytest.mark.parametrize(("ahead", "bound"), [(0, 1.15), (1, 1.2)])
def test_the_estimate_follows_a_long_prompt_on_a_fast_machine(ahead: int, bound: float) -> None:
    """Guards the bound where a tick has thousands of tokens, so that each is dearer by much than
    those of the last one; also where a tick is planned before the last one has returned."""
    cost, position, in_flight = CostModel(), 0, list[tuple[int, float]]()
    for _ in range(20):
        cost.observe(8, 0, 0.005)
    while position < 32_000:
        span = cost.prefill_within(0.045, 8)
        took_s = 0.005 + span * (24e-6 + 1.5e-9 * position)
        position += span
        in_flight.append((span, took_s))
        if len(in_flight) > ahead:
            cost.observe(8, *in_flight.pop(0))
        assert took_s <= 0.045 * bound


def test_short_prompts_say_little_of_long_ones() -> None:
    """Guards the first long prompt after short ones, whose cost is lost in the noise."""
    cost = CostModel()
    for number in range(20):
        cost.observe(2, 0, 0.02)
        cost.observe(2, 2, 0.02 + 0.002 * (number % 2))
        cost.observe(2, 64, 0.02 + 0.064)
    assert cost.prefill_within(0.1, 2) == pytest.approx(80, abs=8)


def test_decodes_that_became_slower_unseen_are_charged_to_prefill() -> None:
    """Guards the direction of the error: it is for those who generate."""
    cost = CostModel()
    cost.observe(2, 0, 0.02)
    for _ in range(50):
        cost.observe(2, 20, 0.05 + 0.02)
    assert 0 < cost.prefill_within(0.1, 2) < 50


def test_prefill_that_costs_nothing_is_not_bounded() -> None:
    """Guards fast machines, and the division."""
    cost, spans = CostModel(), []
    for _ in range(8):
        cost.observe(4, 0, 0.01)
        spans.append(cost.prefill_within(0.1, 4))
        cost.observe(4, spans[-1], 0.01)
    assert spans == [64, 128, 256, 512, 1024, 2048, 4096, 8192]


def test_decodes_that_became_faster_unseen_loosen_the_bound_by_little() -> None:
    """Guards the other direction: prefill seemed free, and ticks of a second followed."""
    cost = CostModel()
    for _ in range(20):
        cost.observe(4, 0, 0.09)
    for _ in range(50):
        span = cost.prefill_within(0.1, 4)
        took_s = 0.02 + 0.0005 * span
        cost.observe(4, span, took_s)
        assert took_s < 0.25


def test_the_retry_time_has_a_rate() -> None:
    """Guards the refusal of a full queue, which says when to come back."""
    cost = CostModel()
    for _ in range(7):
        cost.observe(1, 10, 0.01)
    assert cost.tokens_per_s == pytest.approx(1100.0)


def test_a_tick_that_took_no_time_teaches_nothing() -> None:
    """Guards against division by zero, on a clock too coarse for small batches."""
    cost = CostModel()
    cost.observe(1, 0, 0.0)
    assert cost.tokens_per_s == 0.0


def test_time_that_is_over_leaves_no_prefill() -> None:
    """Guards the sign: decodes alone may take longer than the target."""
    cost = CostModel()
    for number in range(40):
        cost.observe(number % 5, number % 2 * 10, 0.05 + 0.01 * (number % 2))
    assert cost.prefill_within(0.01, 4) == 0


def test_the_line_of_decodes_can_be_read() -> None:
    """Guards T(B) = C + B c as it is shown: from one size of batch there is no slope."""
    cost = CostModel()
    cost.observe(0, 64, 0.5)
    assert cost.fit is None, "a prefill says nothing of decodes"
    cost.observe(4, 0, 0.018)
    assert cost.fit is not None
    assert (cost.fit.fixed_s, cost.fit.sequence_s) == (pytest.approx(0.018), None)
    for number in range(20):
        cost.observe(1 + number % 8, 0, 0.01 + 0.002 * (1 + number % 8))
    assert (cost.fit.fixed_s, cost.fit.sequence_s) == pytest.approx((0.01, 0.002))
    assert cost.fit.seconds(5) == pytest.approx(0.02)


def test_a_slope_that_was_seen_is_not_lost_to_batches_of_one_size() -> None:
    """Guards what is shown under a steady load: forgetting left nothing but one size."""
    cost = CostModel()
    for number in range(20):
        cost.observe(1 + number % 8, 0, 0.01 + 0.002 * (1 + number % 8))
    for _ in range(3000):
        cost.observe(8, 0, 0.036)
    assert cost.fit is not None
    assert cost.fit.sequence_s is not None
    assert cost.fit.sequence_s > 0.0
    assert cost.fit.seconds(8) == pytest.approx(0.036), "the line goes through what is seen now"


def test_no_decodes_take_less_than_no_time() -> None:
    """Guards the split of a pass: a line through noise may begin below zero."""
    assert Fit(-0.01, 0.002).seconds(3) == 0.0
