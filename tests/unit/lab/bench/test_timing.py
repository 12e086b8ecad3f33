"""Figures of a run, compared with counts by hand."""

from dataclasses import replace

import pytest

from jitney.errors import ConfigError
from jitney_lab.bench.timing import (
    METRICS,
    RequestTimes,
    is_within,
    most_at_once,
    peak_rate,
    read_goodput,
    summary,
)

FIRST = RequestTimes(
    sent_at=10.0, prompt_count=5, completion_count=3, token_times=[11.0, 11.5, 12.5], ended_at=13.0
)
SECOND = RequestTimes(
    sent_at=10.0, prompt_count=7, completion_count=1, token_times=[10.5], ended_at=10.5
)
FAILED = RequestTimes(sent_at=10.0, ended_at=10.1, error="refused")


def test_the_times_of_one_request() -> None:
    assert FIRST.ttft_s == 1.0
    assert FIRST.e2el_s == 3.0
    assert FIRST.tpot_s == 1.0
    assert FIRST.itl_s == [0.5, 1.0]
    assert SECOND.tpot_s is None
    assert FAILED.ttft_s is None


def test_the_summary_counts_and_divides() -> None:
    found = summary([FIRST, SECOND, FAILED], 4.0, goodput={"ttft": 600.0})
    assert found["completed"] == 2
    assert found["failed"] == 1
    assert found["total_input_tokens"] == 12
    assert found["total_output_tokens"] == 4
    assert found["request_throughput"] == 0.5
    assert found["output_throughput"] == 1.0
    assert found["total_token_throughput"] == 4.0
    assert found["request_goodput"] == 0.25
    assert found["mean_ttft_ms"] == 750.0
    assert found["p50_e2el_ms"] == 1750.0
    assert found["median_itl_ms"] == 750.0
    assert found["std_ttft_ms"] == 250.0
    assert found["mean_tpot_ms"] == 1000.0


def test_without_answers_there_are_no_latencies() -> None:
    found = summary([FAILED], 1.0)
    assert found["completed"] == 0
    assert found["mean_ttft_ms"] is None
    assert found.keys() == summary([FIRST], 1.0, goodput={"ttft": 1.0}).keys()


def test_the_busiest_second_counts_from_the_first_request() -> None:
    assert peak_rate([FIRST, SECOND]) == 2
    failed = replace(FIRST, token_times=[10.0] * 9, error="broke off")
    assert peak_rate([FIRST, SECOND, failed]) == 2
    assert peak_rate([FAILED]) == peak_rate([]) == 0
    # A chunk of several tokens counts for all of them.
    assert peak_rate([replace(FIRST, completion_count=30)]) == 20


@pytest.mark.parametrize("ended_at", [10.4, 10.5, 11.5, 11.9, 12.0, 13.7])
def test_the_peak_is_never_below_the_mean(ended_at: float) -> None:
    """Guards short runs: the last second of a run is hardly ever a whole one."""
    steady = RequestTimes(
        sent_at=10.0,
        completion_count=100,
        token_times=[10.0 + (ended_at - 10.0) * part / 100 for part in range(1, 101)],
        ended_at=ended_at,
    )
    mean = summary([steady], ended_at - 10.0)["output_throughput"]
    assert isinstance(mean, float)
    assert peak_rate([steady]) == pytest.approx(mean, rel=0.05)
    assert peak_rate([steady]) >= mean


def test_a_gap_may_have_a_limit_where_gaps_are_known() -> None:
    limits = read_goodput(("ttft:1000", "itl:999"), METRICS)
    assert not is_within(FIRST, limits)
    assert is_within(FIRST, {**limits, "itl": 1000.0})
    with pytest.raises(ConfigError, match="ttft, tpot or e2el"):
        read_goodput(("itl:9",))


def test_goodput_needs_every_limit() -> None:
    assert is_within(FIRST, {"ttft": 1000.0, "e2el": 3000.0})
    assert not is_within(FIRST, {"ttft": 1000.0, "e2el": 2999.0})
    # A request of one token has no time per token, which so cannot be too long.
    assert is_within(SECOND, {"tpot": 1.0})


def test_one_that_ends_as_another_begins_is_not_beside_it() -> None:
    earlier = RequestTimes(sent_at=0.0, ended_at=1.0)
    later = RequestTimes(sent_at=1.0, ended_at=2.0)
    assert most_at_once([earlier, later]) == 1
    assert most_at_once([earlier, RequestTimes(sent_at=0.5, ended_at=3.0), later]) == 2
