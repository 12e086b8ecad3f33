"""Decode rates from ticks made by hand, and what is shown of them."""

import time
from dataclasses import replace
from typing import Any

import pytest

from jitney.config import Settings
from jitney.errors import SetupError
from jitney.records import TickRecord
from jitney_lab.bench.in_process import EngineRun
from jitney_lab.bench.scaling import GAIN_COLUMNS, _tick_s, fit, measure, rate_limits, saturation
from jitney_lab.bench.timing import RequestTimes
from tests.plan_for_tests import tick as plan_tick

FAKE = Settings(backend="fake", max_num_seqs=4)


def tick(number: int, *, at: float, tick_ms: float = 1.0, **values: Any) -> TickRecord:
    values = {"batch_size": 1, **values}
    return replace(plan_tick(at, tick_ms), number=number, **values)


def test_a_tick_lasts_from_the_end_of_the_one_before_it() -> None:
    """Guards what a tick does beside the forward pass: it belongs to the figure."""
    ticks = [
        tick(1, at=1.0, batch_size=4, prefill_tokens=99),
        tick(2, at=10.0, batch_size=4),
        tick(3, at=12.0, batch_size=4),
        tick(4, at=14.0, batch_size=4),
        tick(5, at=90.0, batch_size=3),
        tick(6, at=200.0, batch_size=4),
        # A batch that was lost between two has no record.
        tick(8, at=300.0, batch_size=4),
    ]
    assert _tick_s(EngineRun([], ticks, 300.0, 4), 4) == 2.0


def test_a_size_that_no_two_ticks_had_is_one_sentence() -> None:
    for ticks in ([], [tick(1, at=1.0, batch_size=4)]):
        with pytest.raises(SetupError, match="No two ticks in a row had 4 sequences"):
            _tick_s(EngineRun([], ticks, 1.0, 4), 4)
    failed = RequestTimes(sent_at=time.monotonic(), error="it is too long")
    with pytest.raises(SetupError, match="4 at once: it is too long"):
        _tick_s(EngineRun([failed], [], 1.0, 4), 4)


def test_without_one_sequence_nothing_is_a_multiple_of_it() -> None:
    result = measure(FAKE, sizes=(2, 4), runs=1, seed=1, say=lambda text: None)
    assert not set(GAIN_COLUMNS) & set(result.columns)
    assert {len(row) for row in result.rows} == {len(result.columns)}
    assert result.figures["claimed"] == {}
    line: Any = result.figures["fit"]
    assert result.figures["limits_tokens_per_s"] == rate_limits(line)
    rate = dict(zip(result.columns, result.rows[1], strict=True))["B / T(B)"]
    assert rate == f"{4 / (line['fixed_s'] + 4 * line['sequence_s']):,.0f}"


def test_the_limits_are_those_of_one_and_of_many() -> None:
    """Guards ZigLlama's two limits, and noise: a line that falls has none for many."""
    found = rate_limits({"fixed_s": 0.03, "sequence_s": 0.01})
    assert found == {"one": pytest.approx(25.0), "many": pytest.approx(100.0)}
    assert rate_limits({"fixed_s": 0.03, "sequence_s": -0.01})["many"] is None
    assert rate_limits({"fixed_s": 0.0, "sequence_s": 0.0})["one"] is None


def test_a_line_is_found_again() -> None:
    line = fit({size: 0.010 + 0.002 * size for size in (1, 2, 4, 8, 16)})
    assert line["fixed_s"] == pytest.approx(0.010)
    assert line["sequence_s"] == pytest.approx(0.002)
    assert line["error"] == pytest.approx(0.0, abs=1e-9)


def test_the_error_says_how_far_it_is() -> None:
    assert fit({1: 0.01, 2: 0.01, 4: 0.01, 8: 0.04})["error"] > 0.1


def test_saturation_is_where_doubling_stops_helping() -> None:
    assert saturation({1: 10.0, 2: 18.0, 4: 30.0, 8: 31.0}) == 4
    assert saturation({1: 10.0, 2: 18.0, 4: 30.0}) is None


def test_a_step_of_any_length_counts_as_so_many_doublings() -> None:
    # 1.3 times for two doublings are 1.14 each; for four they are 1.07 each.
    assert saturation({1: 10.0, 4: 13.0}) is None
    assert saturation({1: 10.0, 16: 13.0}) == 1
    # 1.08 times for half of a doubling.
    assert saturation({8: 100.0, 11: 108.0}) is None
