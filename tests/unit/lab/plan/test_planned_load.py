"""The load of a plan: its rate, why that one, and what the trace has."""

from dataclasses import replace

import pytest

from jitney_lab.plan.planned_load import (
    BUSIEST,
    CAPACITY,
    IDLE,
    RATE_FLAG,
    TRACE,
    PlannedLoad,
    chosen_rate,
    load_note,
    span_text,
)
from jitney_lab.plan.traffic import BusiestPart, TraceRates
from tests.plan_for_tests import LENGTHS

RECORDED = TraceRates(
    count=4000,
    span_s=7200.0,
    mean_per_s=4000 / 7200,
    busiest=BusiestPart(per_s=5.0, at_s=600.0, span_s=60.0),
)
SHORT = replace(RECORDED, busiest=None)
LOAD = PlannedLoad(LENGTHS, 8.0, RATE_FLAG, None, {"input_len": 3, "trace": None})


def test_a_search_is_for_the_busiest_part_of_a_trace() -> None:
    """The mean of a trace is met by too few replicas."""
    assert chosen_rate(None, RECORDED, replays=False) == (5.0, BUSIEST)
    assert chosen_rate(None, RECORDED, replays=True) == (RECORDED.mean_per_s, TRACE)
    assert chosen_rate(None, SHORT, replays=False) == (RECORDED.mean_per_s, TRACE)
    assert chosen_rate(3.0, RECORDED, replays=False) == (3.0, RATE_FLAG)
    assert chosen_rate(None, None, replays=False) is None


def test_the_busiest_minute_is_said_beside_the_mean() -> None:
    load = replace(LOAD, per_s=5.0, rate_from=BUSIEST, recorded=RECORDED)
    assert load_note(load) == (
        "Load: 5 requests/s, that of its busiest minute, 10 minutes after the first request. The "
        "trace has 4,000 requests in 2 hours, 0.556 requests/s in the mean and 5 in its busiest "
        "minute."
    )


@pytest.mark.parametrize(
    ("rate_from", "recorded", "words"),
    [
        (RATE_FLAG, None, "8 requests/s, as given."),
        (RATE_FLAG, RECORDED, "8 requests/s, as given. The trace has 4,000 requests"),
        (TRACE, RECORDED, "8 requests/s, the mean of the trace. The trace has 4,000"),
        (CAPACITY, None, "8 requests/s, as many as one replica sustains within the limits"),
        (IDLE, None, "8 requests/s, nearly nothing: none was given"),
    ],
)
def test_every_rate_says_where_it_comes_from(
    rate_from: str, recorded: TraceRates | None, words: str
) -> None:
    load = replace(LOAD, rate_from=rate_from, recorded=recorded)
    assert load_note(load).startswith(f"Load: {words}")


def test_a_short_trace_has_no_busiest_part() -> None:
    load = replace(LOAD, rate_from=TRACE, recorded=SHORT)
    assert load_note(load).endswith("in the mean; it is too short to have a busiest part.")


def test_the_json_has_all_that_repeats_it() -> None:
    read = replace(LOAD, recorded=RECORDED).as_json()
    assert read.pop("recorded") is RECORDED
    assert read == {
        "name": "made",
        "input_len": 3,
        "trace": None,
        "per_s": 8.0,
        "per_s_from": "request_rate",
        "burstiness": 1.0,
        "prompt_tokens_mean": 30.0,
        "prompt_tokens_max": 40,
        "completion_tokens_mean": 10.0,
        "completion_tokens_max": 12,
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(90.0, "90 seconds"), (180.0, "3 minutes"), (7300.0, "2 hours")]
)
def test_times_have_a_unit_that_fits(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
