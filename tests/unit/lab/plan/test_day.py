"""A day as a sample: windows, cells, and the error that is reported."""

import math
from dataclasses import replace

import pytest

from jitney.errors import ConfigError
from jitney_lab.bench.workload import Job, Workload
from jitney_lab.plan.day import (
    DayCase,
    WindowCase,
    estimate,
    hours_of,
    run_window,
    simulate_day,
    sinusoid,
)
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.results import day_result
from jitney_lab.plan.traffic import Traffic
from tests.plan_for_tests import QUESTION, make_configuration, make_cost

TRAFFIC = Traffic("made", (Job(number=0, prompt_count=10, completion_count=5),))
CASE = DayCase(
    configuration=make_configuration(replicas=20),
    cost=make_cost(decodes=((1, 0.1),)),
    traffic=TRAFFIC,
    per_s=50.0,
    hours=(0.5, 1.5),
    limits={"ttft": 150.0},
    seed=0,
    passes=2,
)


def window(case: DayCase, hour: int = 0) -> WindowCase:
    return WindowCase(case=case, hour=hour, number=0, warm_s=2.0, window_s=10.0)


def test_a_window_counts_what_arrives_after_its_warm_up() -> None:
    found = run_window(window(CASE))
    # Four of twenty replicas at half of 50 requests a second: 5 a second for ten seconds.
    assert 30 <= found.simulated <= 70
    assert len(found.e2el_ms) == found.simulated
    assert found.within <= found.simulated


def test_a_small_fleet_is_simulated_whole() -> None:
    small = replace(CASE, configuration=make_configuration(replicas=2), per_s=10.0)
    assert 30 <= run_window(window(small)).simulated <= 70


def test_too_much_load_is_noticed() -> None:
    assert run_window(window(replace(CASE, per_s=400.0), hour=1)).is_late
    assert not run_window(window(replace(CASE, per_s=20.0), hour=1)).is_late


def test_a_full_queue_is_too_much_load_even_if_it_is_full_from_the_start() -> None:
    """Most are refused in all parts of the window: nothing gets later and later."""
    small = make_configuration(replicas=20, max_num_queued_reqs=1)
    found = run_window(window(replace(CASE, configuration=small, per_s=2000.0), hour=1))
    assert len(found.e2el_ms) < found.simulated / 2
    assert found.is_late


def test_a_few_refused_requests_are_named_too() -> None:
    small = make_configuration(replicas=20, max_num_queued_reqs=1)
    found = run_window(window(replace(CASE, configuration=small, per_s=150.0), hour=1))
    assert found.simulated / 2 < len(found.e2el_ms) < found.simulated
    assert found.is_late


def test_requests_that_wait_beyond_their_time_are_too_much_load() -> None:
    small = make_configuration(replicas=20, queue_timeout_s=0.2)
    found = run_window(window(replace(CASE, configuration=small, per_s=1000.0), hour=1))
    assert len(found.e2el_ms) < found.simulated / 3
    assert found.is_late


def test_requests_that_do_not_fit_the_model_are_no_load() -> None:
    kinds = (*TRAFFIC.kinds, *[Job(number=0, prompt_count=5000, completion_count=5)] * 3)
    case = replace(CASE, traffic=Traffic("long", kinds), per_s=40.0)
    found = run_window(window(case, hour=1))
    assert len(found.e2el_ms) < found.simulated / 2
    assert not found.is_late


def test_a_day_has_estimates_with_errors() -> None:
    with Pool(1) as pool:
        found = simulate_day(CASE, pool)
        again = simulate_day(CASE, pool)
    assert found == again
    assert found.requests == pytest.approx(50.0 * 86_400)
    assert 0.0 < found.share.value <= 1.0
    assert 0.0 <= found.p95_ms.error < found.p95_ms.value
    assert found.p50_ms.value <= found.p95_ms.value
    assert 0 not in found.overloaded


def test_every_hour_has_its_figures() -> None:
    with Pool(1) as pool:
        found = simulate_day(CASE, pool)
    assert [each.per_s for each in found.hours] == [25.0, 75.0]
    assert all(0.0 < each.share <= 1.0 and each.p95_ms > 0.0 for each in found.hours)


def test_a_window_with_more_requests_than_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="give more --replicas"), Pool(1) as pool:
        simulate_day(replace(CASE, per_s=1e6), pool)


def test_a_day_in_which_all_is_refused_has_no_latency() -> None:
    traffic = Traffic("long", (Job(number=0, prompt_count=5000, completion_count=5),))
    with Pool(1) as pool:
        found = simulate_day(replace(CASE, traffic=traffic), pool)
    assert found.share.value == 0.0
    figures = day_result(QUESTION, 20, found, 1.0).figures
    assert figures["p95_ms"] == {"value": None, "error": None}


def test_the_result_says_that_it_is_a_sample() -> None:
    with Pool(1) as pool:
        found = simulate_day(replace(CASE, per_s=250.0), pool)
    notes = day_result(QUESTION, 20, found, 1.0).notes
    assert any(each.startswith("A sample: ") for each in notes)
    assert any("More arrives than 20 replicas can bear" in each for each in notes)


def test_a_sinusoid_has_its_peak_and_its_mean() -> None:
    hours = sinusoid(1.5)
    assert len(hours) == 24
    assert max(hours) == pytest.approx(1.5, abs=0.01)
    assert sum(hours) / 24 == pytest.approx(1.0)


def test_the_hours_of_a_recording_are_its_counts() -> None:
    jobs = tuple(
        Job(number=number, at_s=at_s, prompt_count=1, completion_count=1)
        for number, at_s in enumerate((0.0, 0.1, 0.2, 24.0))
    )
    hours = hours_of(Workload(name="made", seed=0, jobs=jobs))
    assert hours[0] == 18.0
    assert hours[-1] == 6.0
    assert sum(hours) == 24.0


def test_an_estimate_has_the_error_of_its_passes() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.error == pytest.approx(4.30 / math.sqrt(3))
    assert estimate([1.0]).error == math.inf
    assert math.isnan(estimate([]).value)


def test_one_replica_is_not_several() -> None:
    with Pool(1) as pool:
        found = simulate_day(replace(CASE, per_s=250.0), pool)
    result = day_result(QUESTION, 1, found, 1.0)
    assert result.title.endswith(", 1 replica")
    assert not any("1 replicas" in each for each in result.notes)
    assert any("1 replica can bear" in each for each in result.notes)
