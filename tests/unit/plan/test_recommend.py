"""The search: what it recommends meets the limits, and it says when nothing does."""

from dataclasses import replace

import pytest

from jitney.bench.workload import Job
from jitney.core.scheduler_settings import Mix
from jitney.plan.pool import Pool
from jitney.plan.recommend import CurvePoint, Recommendation, knee, recommend
from jitney.plan.results import recommended
from jitney.plan.search import CapacityCase, LoadCase, find_capacity, run_load
from jitney.plan.traffic import Traffic
from tests.plan_for_tests import COST, LENGTHS, QUESTION, make_configuration


@pytest.fixture(scope="module")
def found() -> Recommendation:
    with Pool(1) as pool:
        return recommend(QUESTION, pool)


def test_what_is_recommended_meets_the_limits(found: Recommendation) -> None:
    best = found.best
    assert best.replicas is not None
    load = QUESTION.load(best.settings, QUESTION.per_s, best.replicas)
    assert best.figures.share >= QUESTION.share
    assert run_load(replace(load, seed=2)).share == best.figures.share


def test_what_is_recommended_needs_no_more_replicas_than_the_present(found: Recommendation) -> None:
    assert found.best.replicas is not None
    assert found.present.replicas is not None
    assert found.best.replicas <= found.present.replicas
    assert found.best.capacity.per_s >= found.present.capacity.per_s


def test_the_slots_follow_the_cost(found: Recommendation) -> None:
    """Ticks of 32 take ten times those of 8: they miss the limit on time per token."""
    assert 4 <= found.best.settings.max_num_seqs < 32


def test_nothing_is_tried_twice(found: Recommendation) -> None:
    tried = [each.settings for each in found.tried]
    assert all(tried.count(each) == 1 for each in tried)


def test_the_knee_is_within_the_curve(found: Recommendation) -> None:
    assert 0.0 < found.knee_per_s <= found.curve[-1].per_s


def test_the_result_names_the_flags(found: Recommendation) -> None:
    result = recommended(QUESTION, found)
    advice = next(each for each in result.notes if each.startswith("Recommended"))
    assert f"--max-num-seqs {found.best.settings.max_num_seqs}" in advice


def test_impossible_limits_are_said_plainly() -> None:
    question = replace(QUESTION, limits={"tpot": 5.0})
    with Pool(1) as pool:
        found = recommend(question, pool)
    assert found.best.replicas is None
    assert found.curve == ()
    notes = recommended(question, found).notes
    assert any(each.startswith("No setting meets these limits") for each in notes)


def test_settings_that_change_nothing_are_left_alone() -> None:
    """One short prompt at a time: chunk, budget and mix do not matter."""
    kinds = (Job(number=0, prompt_count=4, completion_count=2),)
    question = replace(QUESTION, traffic=Traffic("made", kinds), per_s=1.0)
    with Pool(1) as pool:
        settings = recommend(question, pool).best.settings
    assert settings.prefill_chunk == question.settings.prefill_chunk
    assert settings.max_num_batched_tokens == question.settings.max_num_batched_tokens
    assert settings.mix is Mix.BOUNDED_STALL


def test_a_large_fleet_is_a_cell_with_its_part_of_the_load() -> None:
    load = QUESTION.load(QUESTION.settings, 100.0, 50)
    assert load.configuration.replicas == 4
    assert load.per_s == 8.0


def test_the_same_seed_finds_the_same(found: Recommendation) -> None:
    with Pool(2) as pool:
        assert recommend(QUESTION, pool) == found


def test_a_capacity_is_within_the_limits_and_the_throughput() -> None:
    load = LoadCase(
        configuration=make_configuration(),
        cost=COST,
        traffic=LENGTHS,
        limits={"ttft": 500.0},
        per_s=0.0,
        seed=0,
        count=60,
    )
    found = find_capacity(CapacityCase(load=load, share=0.9))
    assert 0.0 < found.per_s < found.most_per_s
    assert found.figures.share >= 0.9


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((1.0, 1.0, 0.8), 2.25),
        ((1.0, 0.9, 1.0), 1.5),
        ((0.5, 1.0, 1.0), 0.0),
        ((1.0, 1.0, 1.0), 3.0),
    ],
)
def test_the_knee_is_where_the_share_falls(shares: tuple[float, ...], expected: float) -> None:
    curve = [
        CurvePoint(per_s=float(number), goodput_per_s=0.0, share=share)
        for number, share in enumerate(shares, start=1)
    ]
    assert knee(curve, 0.95) == pytest.approx(expected)
    assert knee([], 0.95) == 0.0
