"""The search: what it recommends meets the limits, and it says when nothing does."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from jitney.core.scheduler_settings import Mix, Policy
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.recommend import (
    CurvePoint,
    Fleet,
    Recommendation,
    Search,
    find_fleet,
    knee,
    recommend,
)
from jitney_lab.plan.replica import REPLICAS_MAX
from jitney_lab.plan.results import plan_result
from jitney_lab.plan.search import (
    HIGHEST,
    Capacity,
    LoadCase,
    PlanQuestion,
    find_capacity,
    run_load,
    sustained_per_s,
)
from jitney_lab.plan.traffic import Traffic
from tests import plan_for_tests
from tests.plan_for_tests import jobs, make_configuration, make_cost

QUESTION = replace(
    plan_for_tests.QUESTION,
    traffic=Traffic("made", jobs((10, 4), (20, 6))),
    per_s=80.0,
)
"""Of short requests, so that a search is short."""
SMALL = replace(
    QUESTION,
    cost=make_cost(decodes=((1, 0.01), (4, 0.014)), spans=((1, 0.001), (100, 0.1))),
    settings=make_configuration(max_num_seqs=1).settings,
    count=20,
)
"""Of few settings as well."""


def searched(question: PlanQuestion, cores: int = 1) -> Recommendation:
    with Pool(cores) as pool:
        return recommend(question, pool)


def case(question: PlanQuestion, **values: object) -> LoadCase:
    found = LoadCase(question=question, settings=question.settings)
    return replace(found, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def _short_curves() -> Iterator[None]:
    """A picture of few points, from well below what is sustained to well above it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitney_lab.plan.recommend.LOADS", (0.5, 1.0, 1.5))
        yield


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return searched(QUESTION)


@pytest.fixture(scope="module")
def small() -> Recommendation:
    return searched(SMALL, cores=2)


def test_what_is_recommended_meets_the_limits(found: Recommendation) -> None:
    best = found.best
    assert best.replicas is not None
    assert best.figures.share >= QUESTION.share
    checked = case(
        replace(QUESTION, seed=2),
        settings=best.settings,
        per_s=QUESTION.per_s,
        replicas=best.replicas,
    )
    assert run_load(checked).share == best.figures.share
    assert QUESTION.per_s <= found.knee_per_s <= found.curve[-1].per_s
    assert best.replicas <= (found.present.replicas or 0)
    assert best.capacity.per_s >= found.present.capacity.per_s


def test_the_slots_follow_the_cost(found: Recommendation) -> None:
    """Ticks of 8 take ten times those of 4: they miss the limit on time per token."""
    assert 2 <= found.best.settings.max_num_seqs < 8
    assert found.best.settings.policy is Policy.FIFO


def test_present_and_recommended_have_the_same_requests(small: Recommendation) -> None:
    """Also where they have other slots and other numbers of replicas."""
    assert small.best.settings.max_num_seqs != small.present.settings.max_num_seqs
    assert small.best.replicas != small.present.replicas
    assert small.best.figures.count == small.present.figures.count


def test_the_same_seed_finds_the_same(small: Recommendation) -> None:
    """On any number of cores."""
    assert searched(SMALL) == small


def test_no_point_of_a_curve_is_above_the_throughput() -> None:
    """Without limits that matter, a short run at any load is within them."""
    found = searched(replace(SMALL, limits={"e2el": 1e9}))
    assert found.best.replicas is not None
    for fleet, curve in ((found.best, found.curve), (found.present, found.present_curve)):
        most = found.best.replicas * fleet.capacity.most_per_s
        assert curve[-1].per_s > most
        assert all(each.goodput_per_s <= most * (1 + 1e-9) for each in curve)


def test_all_settings_get_the_same_requests() -> None:
    settings = [replace(QUESTION.settings, max_num_seqs=slots) for slots in (1, 4)]
    assert (
        len({run_load(case(QUESTION, settings=each, per_s=20.0)).count for each in settings}) == 1
    )
    alone, like = (run_load(case(QUESTION, per_s=20.0, like=like)) for like in (1, 3))
    assert like.count == 3 * alone.count


def test_a_load_for_one_replica_is_what_the_result_says_that_one_sustains() -> None:
    """Of two searches with other requests the lower counts, in both places."""
    with Pool(1) as pool:
        per_s = Search(SMALL, pool).sustained(SMALL.settings).per_s
    found = searched(replace(SMALL, per_s=per_s))
    assert found.present.capacity.per_s == per_s
    assert found.best.replicas == 1
    assert found.knee_per_s == found.best.capacity.per_s


def fleet_of(question: PlanQuestion, capacity: Capacity) -> Fleet:
    with Pool(1) as pool:
        search = Search(question, pool)
        search.tried[question.settings] = capacity
        return find_fleet(search, question.settings)


def test_one_replica_that_sustains_the_load_sustains_no_less() -> None:
    """The search of what one sustains is coarse."""
    found = find_capacity(case(SMALL))
    per_s = 0.95 * found.per_s
    question = replace(SMALL, per_s=per_s, seed=SMALL.seed - 1)
    fleet = fleet_of(question, replace(found, per_s=0.9 * found.per_s))
    assert (fleet.replicas, fleet.capacity.per_s) == (1, per_s)


def test_the_fewest_replicas_are_searched_however_far_the_guess_is_off() -> None:
    question = replace(SMALL, per_s=80.0)
    found = find_capacity(case(question))
    fair, far = (
        fleet_of(question, replace(found, per_s=found.per_s / factor)) for factor in (1, 5)
    )
    assert fair.replicas == far.replicas
    assert fair.replicas is not None
    assert fair.figures.share >= question.share
    other = replace(question, seed=question.seed + 1)
    fewer = run_load(case(other, per_s=80.0, replicas=fair.replicas - 1))
    least = math.ceil(80.0 / (HIGHEST * found.most_per_s))
    assert fewer.share < question.share or fair.replicas == least


def test_no_fleet_has_less_throughput_than_the_load() -> None:
    """Without limits that matter, a short run does not show that its queue grows."""
    question = replace(SMALL, limits={"e2el": 1e9}, per_s=50.0)
    capacity = find_capacity(case(question))
    found = fleet_of(question, replace(capacity, per_s=1.0))
    assert found.replicas == math.ceil(50.0 / (HIGHEST * capacity.most_per_s))


def test_impossible_limits_are_said_plainly() -> None:
    question = replace(SMALL, limits={"tpot": 5.0})
    found = searched(question)
    assert (found.best.replicas, found.curve) == (None, ())
    notes = plan_result(question, found).notes
    assert any(each.startswith("No setting meets these limits") for each in notes)


def test_a_load_beyond_all_fleets_is_said() -> None:
    question = replace(
        SMALL, per_s=1e6, cost=make_cost(decodes=((1, 1.0), (2, 2.0))), limits={"ttft": 5e4}
    )
    found = searched(question)
    assert found.best.replicas == REPLICAS_MAX
    notes = plan_result(question, found).notes
    assert any("needs more than 100,000 replicas" in each for each in notes)


def test_settings_that_change_nothing_are_left_alone() -> None:
    """One short prompt at a time: chunk, budget and mix do not matter."""
    question = replace(SMALL, traffic=Traffic("made", jobs((4, 2))), per_s=1.0)
    settings = searched(question).best.settings
    assert settings.prefill_chunk == question.settings.prefill_chunk
    assert settings.max_num_batched_tokens == question.settings.max_num_batched_tokens
    assert settings.mix is Mix.BOUNDED_STALL


def test_a_large_fleet_is_a_cell_with_its_part_of_the_load() -> None:
    four, many = (
        run_load(case(SMALL, per_s=8.0 * replicas, replicas=replicas)) for replicas in (4, 50)
    )
    assert four == many


def question(*kinds: tuple[int, int], slots: int = 16, **values: object) -> PlanQuestion:
    """Requests with these lengths; computing prompts takes no time."""
    found = replace(
        QUESTION,
        settings=make_configuration(max_num_seqs=slots).settings,
        cost=make_cost(decodes=((1, 0.01), (16, 0.01)), spans=((1, 0.0), (1000, 0.0))),
        traffic=Traffic("made", jobs(*kinds), 1e6),
        limits={},
        count=None,
    )
    return replace(found, **values)  # type: ignore[arg-type]


def test_a_short_queue_does_not_hide_what_a_replica_can_do() -> None:
    """Guards large batches: clients that were refused asked again at once, until none was left."""
    asked = question((32, 16))
    short = replace(asked.settings, max_num_queued_reqs=2)
    found = [run_load(case(asked, settings=each)) for each in (asked.settings, short)]
    assert found[0].per_s == found[1].per_s > 0


def test_the_most_throughput_is_that_of_full_slots() -> None:
    """The long answers that are left at the end would keep few slots busy for a long time."""
    found = run_load(case(question((10, 3), (10, 11), (10, 31), (10, 61), slots=64)))
    # Each token takes a tick of 10 ms, the first too: others generate in it. 26.5 in the mean.
    assert found.per_s == pytest.approx(64 / 0.265, rel=0.1)
    assert found.tokens_per_s == pytest.approx(64 / 0.01, rel=0.1)


def test_an_open_load_is_judged_when_its_slots_have_filled() -> None:
    """From the fifth sequence on a tick takes twice the time; 8 requests/s of 1 s each are 8."""
    cost = make_cost(
        decodes=((1, 0.01), (4, 0.01), (5, 0.02), (16, 0.02)), spans=((1, 0.0), (1000, 0.0))
    )
    found = run_load(case(question((10, 101), cost=cost, limits={"tpot": 15.0}), per_s=6.0))
    assert found.share == 0.0
    assert found.per_s == pytest.approx(6.0, rel=0.05)


def test_a_load_of_which_all_is_refused_has_no_throughput_and_no_overload() -> None:
    refused = question((5000, 2), count=60)
    for per_s in (0.0, 5.0):
        found = run_load(case(refused, per_s=per_s))
        assert (found.per_s, found.share) == (0.0, 0.0)
    assert sustained_per_s(case(refused)) == math.inf


def test_requests_that_are_refused_arrive_too() -> None:
    """Half of them are refused at once: twice as many may arrive."""
    all_taken, half = (
        sustained_per_s(case(question((10, 5), (length, 5)), replicas=3)) for length in (10, 5000)
    )
    assert half == pytest.approx(2 * all_taken, rel=0.1)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((1.0, 1.0, 0.8), 2.25),
        ((1.0, 0.9, 1.0), 1.5),
        ((0.5, 1.0, 1.0), 0.0),
        ((1.0, 1.0, 1.0), 3.0),
        ((), 0.0),
    ],
)
def test_the_knee_is_where_the_share_falls(shares: tuple[float, ...], expected: float) -> None:
    curve = [
        CurvePoint(per_s=float(number), goodput_per_s=0.0, share=share)
        for number, share in enumerate(shares, start=1)
    ]
    assert knee(curve, 0.95) == pytest.approx(expected)
