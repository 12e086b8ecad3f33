"""The load of a plan is told: its rate, why that one, and what the trace has."""

import json
from dataclasses import replace

import pytest

from jitney.core.scheduler_settings import Policy
from jitney_lab.bench.report import Result
from jitney_lab.bench.workload import Job, Workload
from jitney_lab.plan.planned_load import (
    SJF_NOTE,
    PlannedLoad,
    RateFrom,
    Recorded,
    bearable,
    chosen_rate,
    load_note,
    recorded_of,
    span_text,
    stated,
)
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.search import CapacityCase, find_capacity, run_load
from jitney_lab.plan.traffic import Busiest
from tests.plan_for_tests import LENGTHS, QUESTION

RESULT = Result(name="made", title="made", columns=("a",), rows=(), notes=("b",), figures={"c": 1})
RECORDED = Recorded(
    count=4000,
    span_s=7200.0,
    mean_per_s=4000 / 7200,
    busiest=Busiest(per_s=5.0, at_s=600.0, span_s=60.0, is_all=False),
)
GIVEN = PlannedLoad(
    traffic=LENGTHS, per_s=8.0, rate_from=RateFrom.GIVEN, asked={"input_len": 3, "trace": None}
)


def test_a_search_is_for_the_busiest_part_of_a_trace() -> None:
    """The mean of a trace is met by too few replicas."""
    assert chosen_rate(None, RECORDED, replays=False) == (5.0, RateFrom.BUSIEST)
    assert chosen_rate(None, RECORDED, replays=True) == (RECORDED.mean_per_s, RateFrom.TRACE)
    assert chosen_rate(3.0, RECORDED, replays=False) == (3.0, RateFrom.GIVEN)
    assert chosen_rate(None, None, replays=False) is None


def test_without_a_rate_one_replica_bears_the_load() -> None:
    """Its most throughput, limits aside, is more than it bears."""
    with Pool(1) as pool:
        per_s, rate_from = bearable(QUESTION, pool)
    assert rate_from is RateFrom.CAPACITY
    load = QUESTION.load(QUESTION.settings, per_s)
    assert run_load(load).share >= QUESTION.share
    found = find_capacity(CapacityCase(load=replace(load, per_s=0.0), share=QUESTION.share))
    assert per_s <= found.per_s < found.most_per_s


def test_without_a_rate_and_with_limits_that_nothing_meets_the_load_is_small() -> None:
    impossible = replace(QUESTION, limits={"tpot": 5.0})
    with Pool(1) as pool:
        per_s, rate_from = bearable(impossible, pool)
    assert rate_from is RateFrom.IDLE
    most = run_load(QUESTION.load(QUESTION.settings, 0.0)).per_s
    assert 0.0 < per_s < 0.1 * most


def test_the_busiest_minute_is_told_beside_the_mean() -> None:
    load = replace(GIVEN, per_s=5.0, rate_from=RateFrom.BUSIEST, recorded=RECORDED)
    assert load_note(load) == (
        "Load: 5 requests/s, that of its busiest minute, 10 minutes after the first request. The "
        "trace has 4,000 requests in 2 hours, 0.556 requests/s in the mean and 5 in its busiest "
        "minute."
    )


@pytest.mark.parametrize(
    ("rate_from", "recorded", "told"),
    [
        (RateFrom.GIVEN, None, "8 requests/s, as given."),
        (RateFrom.GIVEN, RECORDED, "8 requests/s, as given. The trace has 4,000 requests"),
        (RateFrom.TRACE, RECORDED, "8 requests/s, the mean of the trace. The trace has 4,000"),
        (RateFrom.CAPACITY, None, "8 requests/s, as many as one replica bears within the limits"),
        (RateFrom.IDLE, None, "8 requests/s, nearly nothing: none was given"),
    ],
)
def test_every_rate_says_where_it_comes_from(
    rate_from: RateFrom, recorded: Recorded | None, told: str
) -> None:
    load = replace(GIVEN, rate_from=rate_from, recorded=recorded)
    assert load_note(load).startswith(f"Load: {told}")


def test_a_short_trace_has_no_busiest_part() -> None:
    jobs = tuple(
        Job(number=number, at_s=0.1 * number, prompt_count=3, completion_count=2)
        for number in range(40)
    )
    recorded = recorded_of(Workload(name="made", seed=0, jobs=jobs))
    assert chosen_rate(None, recorded, replays=False) == (recorded.mean_per_s, RateFrom.TRACE)
    load = replace(GIVEN, rate_from=RateFrom.TRACE, recorded=recorded)
    assert load_note(load) == (
        "Load: 8 requests/s, the mean of the trace. The trace has 40 requests in 3.9 seconds, 10.3 "
        "requests/s in the mean; it is too short to have a busiest part."
    )


def test_the_json_has_all_that_repeats_it() -> None:
    load = replace(GIVEN, recorded=RECORDED)
    result = stated(RESULT, load, [Policy.FIFO])
    assert result.notes == (load_note(load), "b")
    read = json.loads(json.dumps(result.figures, allow_nan=False))
    assert read["c"] == 1
    assert read["rate"] == 8.0
    assert read["load"]["recorded"]["busiest"]["per_s"] == 5.0
    del read["load"]["recorded"]
    assert read["load"] == {
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


def test_it_is_told_that_sjf_knew_the_lengths() -> None:
    assert SJF_NOTE in stated(RESULT, GIVEN, [Policy.FIFO, Policy.SJF]).notes
    assert stated(RESULT, GIVEN, [Policy.FIFO]).figures["max_tokens"] == "the length of each answer"


@pytest.mark.parametrize(
    ("seconds", "text"), [(90.0, "90 seconds"), (180.0, "3 minutes"), (7300.0, "2 hours")]
)
def test_times_have_a_unit_that_fits(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
