"""The search: what it recommends meets the limits, and it says when nothing does."""

import math
from dataclasses import replace

import pytest

from jitney.core.scheduler_settings import Mix, Policy
from jitney_lab.bench.workload import Job
from jitney_lab.plan.planned_load import bearable
from jitney_lab.plan.pool import Pool
from jitney_lab.plan.recommend import (
    CurvePoint,
    Fleet,
    Recommendation,
    Tried,
    find_fleet,
    knee,
    recommend,
)
from jitney_lab.plan.replica import REPLICAS_MAX
from jitney_lab.plan.results import recommended
from jitney_lab.plan.search import (
    HIGHEST,
    Capacity,
    CapacityCase,
    LoadCase,
    find_capacity,
    run_load,
)
from jitney_lab.plan.traffic import Traffic
from tests.plan_for_tests import COST, LENGTHS, QUESTION, make_configuration, make_cost


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
    """Ticks of 16 take ten times those of 8: they miss the limit on time per token."""
    assert 4 <= found.best.settings.max_num_seqs < 16


def test_nothing_is_tried_twice(found: Recommendation) -> None:
    tried = [each.settings for each in found.tried]
    assert all(tried.count(each) == 1 for each in tried)


def test_the_knee_is_within_the_curve(found: Recommendation) -> None:
    assert 0.0 < found.knee_per_s <= found.curve[-1].per_s


SMALL = replace(
    QUESTION,
    cost=make_cost(decodes=((1, 0.01), (4, 0.014)), spans=((1, 0.001), (100, 0.1))),
    settings=make_configuration(max_num_seqs=1).settings,
)
"""Of few settings, so that a search is short."""


def test_no_point_of_a_curve_is_above_the_throughput() -> None:
    """Without limits that matter, a short run at any load is within them."""
    with Pool(1) as pool:
        found = recommend(replace(SMALL, limits={"e2el": 1e9}), pool)
    replicas = found.best.replicas
    assert replicas is not None
    for fleet, curve in ((found.best, found.curve), (found.present, found.present_curve)):
        most = replicas * fleet.capacity.most_per_s
        assert curve[-1].per_s > most
        assert all(each.goodput_per_s <= most * (1 + 1e-9) for each in curve)
        assert all(each.goodput_per_s == each.share * each.per_s for each in curve)


def test_present_and_recommended_have_the_same_requests() -> None:
    """Also where they have other slots and other numbers of replicas."""
    with Pool(1) as pool:
        found = recommend(SMALL, pool)
    assert found.best.settings.max_num_seqs != found.present.settings.max_num_seqs
    assert found.best.replicas != found.present.replicas
    assert found.best.figures.count == found.present.figures.count


def test_all_settings_get_the_same_requests() -> None:
    loads = [
        QUESTION.load(replace(QUESTION.settings, max_num_seqs=slots), 20.0) for slots in (1, 4, 16)
    ]
    assert len({run_load(each).count for each in loads}) == 1
    larger = QUESTION.load(QUESTION.settings, 20.0, 1, like=3)
    assert (larger.count, larger.slots) == (3 * 60, 3 * 16)


def test_a_fleet_of_one_bears_what_one_bears() -> None:
    with Pool(1) as pool:
        found = recommend(replace(SMALL, per_s=5.0), pool)
    assert found.best.replicas == 1
    assert found.knee_per_s == found.best.capacity.per_s > 5.0


def test_a_load_for_one_replica_is_what_the_result_says_that_one_bears() -> None:
    """Of two searches with other requests the lower counts, in both places."""
    with Pool(1) as pool:
        per_s, _ = bearable(SMALL, pool)
        found = recommend(replace(SMALL, per_s=per_s), pool)
    assert found.present.capacity.per_s == per_s


def test_one_replica_that_bears_the_load_bears_no_less() -> None:
    """The search of what one bears is coarse."""
    found = find_capacity(CapacityCase(load=SMALL.load(SMALL.settings, 0.0), share=SMALL.share))
    tried = Tried(settings=SMALL.settings, capacity=replace(found, per_s=0.9 * found.per_s))
    per_s = 0.95 * found.per_s
    with Pool(1) as pool:
        fleet = find_fleet(replace(SMALL, per_s=per_s, seed=SMALL.seed - 1), tried, pool)
    assert (fleet.replicas, fleet.capacity.per_s) == (1, per_s)


def test_a_fleet_that_is_within_the_limits_bears_its_load(found: Recommendation) -> None:
    assert found.best.figures.share >= QUESTION.share
    assert found.knee_per_s >= QUESTION.per_s


def test_the_result_names_the_flags(found: Recommendation) -> None:
    result = recommended(QUESTION, found)
    advice = next(each for each in result.notes if each.startswith("Recommended"))
    assert f"--max-num-seqs {found.best.settings.max_num_seqs}" in advice


@pytest.mark.parametrize(
    ("backend", "is_named"), [("auto", True), ("other", True), ("made", False)]
)
def test_the_flags_name_the_backend_of_the_cost(
    found: Recommendation, backend: str, *, is_named: bool
) -> None:
    """Guards who copies the line: `auto` may take another backend for the recommended slots."""
    assert QUESTION.cost.traits.name == "made"
    question = replace(QUESTION, backend=backend)
    same = replace(found, best=replace(found.best, settings=question.settings))
    for each in (found, same):
        advice = next(note for note in recommended(question, each).notes if "Recommended" in note)
        assert (" with --backend made " in advice) is is_named
        assert ("the present settings" in advice) is (each is same)


def test_sjf_is_told_and_not_recommended(found: Recommendation) -> None:
    """A simulation knows the lengths of answers, and production does not."""
    assert found.best.settings.policy is Policy.FIFO
    assert found.sjf_per_s is not None
    gain = replace(found, sjf_per_s=2 * found.best.capacity.per_s)
    told = [each for each in recommended(QUESTION, gain).notes if "--policy sjf" in each]
    assert len(told) == 1
    assert "so it is not recommended" in told[0]
    assert recommended(QUESTION, gain).figures["sjf_bears_per_s"] == gain.sjf_per_s
    equal = replace(found, sjf_per_s=found.best.capacity.per_s)
    assert not any("sjf" in each for each in recommended(QUESTION, equal).notes)


def test_the_place_of_the_backend_is_told(found: Recommendation) -> None:
    told = {None: "error of 0 % each. It holds for", True: "of its own", False: "engine's process"}
    for place, words in told.items():
        question = replace(QUESTION, cost=make_cost(backend_process=place))
        result = recommended(question, found)
        assert any(words in each for each in result.notes)
        cost = result.figures["cost"]
        assert isinstance(cost, dict)
        assert cost["backend_process"] is place


@pytest.mark.parametrize(("share", "is_told"), [(None, False), (0.04, False), (0.31, True)])
def test_what_others_took_while_the_cost_was_measured_is_told(
    found: Recommendation, share: float | None, *, is_told: bool
) -> None:
    """Guards plans for a slower machine than it is: ticks wait where the host is busy."""
    question = replace(QUESTION, cost=make_cost(stolen_share=share))
    result = recommended(question, found)
    assert any("took 31 % of the processors" in each for each in result.notes) is is_told
    cost = result.figures["cost"]
    assert isinstance(cost, dict)
    assert cost["stolen_share"] == share


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


def test_a_short_queue_does_not_hide_what_a_replica_can_do() -> None:
    """Guards large batches: clients that were refused asked again at once, until none was left."""
    found = [
        run_load(load((32, 16), configuration=make_configuration(max_num_seqs=16, **queue)))
        for queue in ({}, {"max_num_queued_reqs": 2})
    ]
    assert found[0].per_s == found[1].per_s > 0


def load(*kinds: tuple[int, int], **values: object) -> LoadCase:
    """A load of requests with these lengths; computing prompts takes no time."""
    jobs = tuple(
        Job(number=0, prompt_count=prompt, completion_count=completion)
        for prompt, completion in kinds
    )
    case = LoadCase(
        configuration=make_configuration(max_num_seqs=16),
        cost=make_cost(spans=((1, 0.0), (1000, 0.0))),
        traffic=Traffic("made", jobs, 1e6),
        limits={},
        per_s=0.0,
        seed=0,
    )
    return replace(case, **values)  # type: ignore[arg-type]


def test_the_most_throughput_is_that_of_full_slots() -> None:
    """The long answers that are left at the end would keep few slots busy for a long time."""
    configuration = make_configuration(max_num_seqs=64)
    found = run_load(load((10, 3), (10, 11), (10, 31), (10, 61), configuration=configuration))
    # Each token takes a tick of 10 ms, the first too: others generate in it. 26.5 in the mean.
    assert found.per_s == pytest.approx(64 / 0.265, rel=0.1)
    assert found.tokens_per_s == pytest.approx(64 / 0.01, rel=0.1)


def test_an_open_load_is_judged_when_its_slots_have_filled() -> None:
    """From the fifth sequence on a tick takes twice the time; 8 requests/s of 1 s each are 8."""
    cost = make_cost(
        decodes=((1, 0.01), (4, 0.01), (5, 0.02), (16, 0.02)), spans=((1, 0.0), (1000, 0.0))
    )
    found = run_load(load((10, 101), cost=cost, per_s=6.0, limits={"tpot": 15.0}))
    assert found.share == 0.0
    assert found.per_s == pytest.approx(6.0, rel=0.05)


def test_a_run_is_long_enough_for_its_slots() -> None:
    found = run_load(load((10, 5), per_s=50.0, count=10))
    assert found.count == (8 - 2 - 1) * 16


def test_a_load_of_which_all_is_refused_has_no_throughput() -> None:
    for per_s in (0.0, 5.0):
        found = run_load(load((5000, 2), per_s=per_s))
        assert (found.per_s, found.share) == (0.0, 0.0)


def fleet_of(per_s: float, capacity: Capacity) -> Fleet:
    tried = Tried(settings=QUESTION.settings, capacity=capacity)
    with Pool(1) as pool:
        return find_fleet(replace(QUESTION, per_s=per_s), tried, pool)


def test_the_fewest_replicas_are_searched_however_far_the_guess_is_off() -> None:
    """A share of 95 % that one replica alone reaches only at a low load."""
    found = find_capacity(
        CapacityCase(load=QUESTION.load(QUESTION.settings, 0.0), share=QUESTION.share)
    )
    fair = fleet_of(200.0, found)
    far = fleet_of(200.0, replace(found, per_s=found.per_s / 5))
    assert fair.replicas == far.replicas
    assert fair.replicas is not None
    assert fair.figures.share >= QUESTION.share
    other = replace(QUESTION, seed=QUESTION.seed + 1)
    fewer = run_load(other.load(QUESTION.settings, 200.0, fair.replicas - 1))
    least = math.ceil(200.0 / (HIGHEST * found.most_per_s))
    assert fewer.share < QUESTION.share or fair.replicas == least


def test_no_fleet_has_less_throughput_than_the_load() -> None:
    """Without limits that matter, a short run does not show that its queue grows."""
    question = replace(QUESTION, limits={"e2el": 1e9}, per_s=100.0)
    capacity = find_capacity(
        CapacityCase(load=question.load(question.settings, 0.0), share=question.share)
    )
    tried = Tried(settings=question.settings, capacity=replace(capacity, per_s=1.0))
    with Pool(1) as pool:
        found = find_fleet(question, tried, pool)
    assert found.replicas == math.ceil(100.0 / (HIGHEST * capacity.most_per_s))


def test_a_load_beyond_all_fleets_is_said() -> None:
    question = replace(QUESTION, per_s=1e6, cost=make_cost(decodes=((1, 1.0), (4, 4.0))))
    question = replace(question, limits={"ttft": 1e5})
    with Pool(1) as pool:
        found = recommend(question, pool)
    assert found.best.replicas == REPLICAS_MAX
    notes = recommended(question, found).notes
    assert any("needs more than 100,000 replicas" in each for each in notes)


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
