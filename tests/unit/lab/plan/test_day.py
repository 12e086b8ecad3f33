"""A day as a sample: windows, cells, and the error that is reported."""

import math
from dataclasses import replace

import pytest

from jitney_lab.bench.report import document
from jitney_lab.plan.day import (
    DayFigures,
    estimate,
    hours_of,
    run_window,
    simulate_day,
    sinusoid,
)
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.results import day_result
from jitney_lab.plan.search import LoadCase
from jitney_lab.plan.traffic import Traffic
from tests.plan_for_tests import QUESTION, at_times, jobs, make_cost

ASKED = replace(
    QUESTION,
    cost=make_cost(decodes=((1, 0.1),)),
    traffic=Traffic("made", jobs((10, 5))),
    per_s=50.0,
    limits={"ttft": 150.0},
)
DAY = LoadCase(question=ASKED, settings=ASKED.settings, replicas=20)
RATES = (0.5, 1.5, 0.0)


def simulated(case: LoadCase) -> DayFigures:
    with Pool(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitney_lab.plan.day.PASSES", 2)
        return simulate_day(case, RATES, pool)


@pytest.fixture(scope="module")
def found() -> DayFigures:
    return simulated(DAY)


@pytest.mark.parametrize(("replicas", "cell"), [(20, 4), (2, 2)])
def test_a_window_has_requests_in_proportion_to_its_hour(replicas: int, cell: int) -> None:
    case = replace(DAY, replicas=replicas)
    counts = [len(run_window(case, RATES, (hour, 0)).requests) for hour in (0, 1)]
    assert counts == [0.5 * 60 * cell, 1.5 * 60 * cell]


def test_a_day_has_estimates_with_errors(found: DayFigures) -> None:
    # As text, because NaN is not equal to itself.
    assert repr(simulated(DAY)) == repr(found)
    assert found.requests == pytest.approx(50.0 * 2 / 3 * 86_400)
    assert found.simulated == 2 * 480
    assert 0.0 < found.share.value <= 1.0
    assert 0.0 <= found.p95_ms.error < found.p95_ms.value
    assert found.p50_ms.value <= found.p95_ms.value
    assert found.overloaded == ()


def test_every_hour_has_its_figures(found: DayFigures) -> None:
    assert [each["per_s"] for each in found.hours] == [25.0, 75.0, 0.0]
    assert all(0.0 < each["share"] <= 1.0 and each["p95_ms"] > 0.0 for each in found.hours[:2])
    assert math.isnan(found.hours[2]["p95_ms"])


@pytest.mark.parametrize("replicas", [1, 20])
def test_hours_with_more_than_the_fleet_sustains_are_named(replicas: int) -> None:
    asked = replace(ASKED, per_s=10.0 * replicas)
    found = simulated(replace(DAY, question=asked, replicas=replicas))
    assert found.overloaded == (1,)
    result = day_result(asked, replicas, found, 1.0)
    fleet = "1 replica" if replicas == 1 else "20 replicas"
    assert result.title.endswith(f", {fleet}")
    assert any(each.startswith("A sample: ") for each in result.notes)
    assert any(f"More arrives than {fleet} can sustain in" in each for each in result.notes)


def test_a_day_in_which_all_is_refused_has_no_latency() -> None:
    traffic = Traffic("long", jobs((5000, 5)))
    found = simulated(replace(DAY, question=replace(ASKED, traffic=traffic)))
    assert (found.share.value, found.overloaded) == (0.0, ())
    content = document(day_result(ASKED, 20, found, 1.0), 0)
    assert content["p95_ms"] == {"value": None, "error": None}


def test_a_sinusoid_has_its_peak_and_its_mean() -> None:
    hours = sinusoid(1.5)
    assert len(hours) == 24
    assert max(hours) == pytest.approx(1.5, abs=0.01)
    assert sum(hours) / 24 == pytest.approx(1.0)


def test_the_hours_of_a_recording_are_its_counts() -> None:
    hours = hours_of(at_times(0.0, 0.1, 0.2, 24.0))
    assert (hours[0], hours[-1], sum(hours)) == (18.0, 6.0, 24.0)


def test_an_estimate_has_the_error_of_its_passes() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.error == pytest.approx(4.30 / math.sqrt(3))
    assert estimate([1.0, math.nan]).error == math.inf
    assert math.isnan(estimate([]).value)
