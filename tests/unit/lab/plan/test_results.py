"""Results for people and programs: their load and cost, what to set, and doubts."""

import math
from dataclasses import replace
from typing import Any

import pytest

from jitney.core.scheduler_settings import Policy
from jitney_lab.bench.report import Result, document
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.plan.planned_load import RATE_FLAG, PlannedLoad
from jitney_lab.plan.recommend import CurvePoint, Fleet, Recommendation
from jitney_lab.plan.results import (
    SJF_NOTE,
    Replay,
    cost_note,
    plan_result,
    result_of,
    what_if_result,
)
from jitney_lab.plan.search import Capacity, Figures, figures_of
from tests.plan_for_tests import LENGTHS, QUESTION, make_cost

NONE = figures_of([], 0.0, {}, 0.0)
LOAD = PlannedLoad(LENGTHS, 40.0, RATE_FLAG, None, {"trace": None})
FLEET = Fleet(
    settings=replace(QUESTION.settings, max_num_seqs=2),
    capacity=Capacity(most_per_s=30.0, per_s=20.0, figures=NONE),
    replicas=3,
    figures=replace(NONE, share=0.97),
)
FOUND = Recommendation(
    best=FLEET,
    present=replace(FLEET, settings=QUESTION.settings),
    tried={FLEET.settings: FLEET.capacity},
    curve=(CurvePoint(per_s=1.0, goodput_per_s=1.0, share=1.0),),
    present_curve=(),
    knee_per_s=50.0,
)


def figures(p95_ms: float, failed: int = 0, failure: str | None = None) -> Figures:
    return replace(NONE, count=10, failed=failed, p95_ms=p95_ms, failure=failure)


def what_if(*rows: Replay) -> Result:
    return result_of(what_if_result(QUESTION, rows, [Policy.FIFO]), QUESTION, LOAD)


def test_a_result_has_its_load_and_its_cost() -> None:
    result = result_of(plan_result(QUESTION, FOUND), QUESTION, LOAD)
    read = document(result, 0)
    assert result.notes[0].startswith("Load: 40 requests/s, as given.")
    assert result.notes[1] == cost_note(QUESTION.cost)
    assert (read["rate"], read["load"]["per_s"]) == (40.0, 40.0)
    assert read["cost"]["backend"] == "made"
    assert read["max_tokens"] == "the length of each answer"
    assert read["tried"][0]["max_num_seqs"] == 2
    assert result.rows[0] == ("max_num_seqs", "4", "2")


@pytest.mark.parametrize(
    ("backend", "is_named"), [("auto", True), ("other", True), ("made", False)]
)
def test_the_flags_name_the_backend_of_the_cost(backend: str, *, is_named: bool) -> None:
    """Guards who copies the line: `auto` may take another backend for the recommended slots."""
    question = replace(QUESTION, backend=backend)
    same = replace(FOUND, best=FOUND.present)
    for each in (FOUND, same):
        advice = next(note for note in plan_result(question, each).notes if "Recommended" in note)
        assert (" with --backend made " in advice) is is_named
        assert ("the present settings" in advice) is (each is same)
        assert ("--max-num-seqs 2" in advice) is (each is FOUND)


def test_sjf_is_reported_and_not_recommended() -> None:
    """A simulation knows the lengths of answers, and production does not."""
    for factor, is_noted in ((2.0, True), (1.0, False)):
        result = plan_result(QUESTION, replace(FOUND, sjf_per_s=factor * 20.0))
        noted = [each for each in result.notes if "--policy sjf" in each]
        assert len(noted) == is_noted
        assert all("so it is not recommended" in each for each in noted)
        assert result.figures["sjf_bears_per_s"] == factor * 20.0
    assert SJF_NOTE in what_if_result(QUESTION, [Replay("a", 1, NONE)], [Policy.SJF]).notes


def test_a_fleet_at_the_edge_is_said() -> None:
    edge = replace(FOUND, best=replace(FLEET, figures=replace(NONE, share=0.9)))
    assert any("take one replica more" in each for each in plan_result(QUESTION, edge).notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend_process": None}, "error of 0 % each. It holds for"),
        ({"backend_process": True}, "in a process of its own"),
        ({"backend_process": False}, "in the engine's process"),
        ({"error": 0.2}, "measure again on a quiet machine."),
        ({"error": 0.2, "stolen_share": 0.3}, "took 30 % of the processors while it was measured"),
        ({"error": 0.02, "stolen_share": 0.3}, "measure again at another time."),
    ],
)
def test_a_cost_says_where_it_was_measured_and_how_good_it_is(
    changes: dict[str, Any], words: str
) -> None:
    assert words in cost_note(make_cost(**changes))


def test_a_good_cost_is_not_doubted() -> None:
    for stolen_share in (None, 0.0, 0.02):
        assert "measure again" not in cost_note(make_cost(error=0.1, stolen_share=stolen_share))


def test_changes_stand_side_by_side() -> None:
    rows = what_if(
        Replay("present", 1, figures(100.0)),
        Replay("mix=separate", 2, figures(80.0)),
        Replay("kv_tokens=10", 1, figures(math.nan)),
    ).rows
    assert [row[5] for row in rows] == ["100", "80 (-20 %)", "-"]
    assert rows[1][:2] == ("mix=separate", "2")


def test_what_no_request_has_is_null_in_json() -> None:
    result = what_if(Replay("a", 1, figures(math.nan)), Replay("b", 1, figures(math.inf)))
    read = document(result, 0)
    assert [run["p95_ms"] for run in read["runs"]] == [None, None]


def test_refused_requests_are_said_of_all_settings() -> None:
    notes = what_if(
        Replay("present", 1, figures(100.0, 4, "The queue is full.")),
        Replay("kv_tokens=10", 1, figures(math.nan, 10)),
    ).notes
    assert (
        "4 of 10 requests were refused or failed under present, for example: The queue is full."
        in notes
    )
    assert "All 10 requests were refused or failed under kv_tokens=10." in notes


@pytest.mark.parametrize("is_overloaded", [True, False, None])
def test_settings_that_sustain_less_than_what_arrives_are_named(is_overloaded: bool | None) -> None:
    result = what_if(
        Replay("present", 1, figures(100.0)), Replay("mix=x", 2, figures(80.0), is_overloaded)
    )
    start = "More arrives than the replicas sustain under these settings: mix=x. "
    assert any(each.startswith(start) for each in result.notes) is bool(is_overloaded)
    runs = result.figures["runs"]
    assert isinstance(runs, list)
    assert runs[1]["overloaded"] is is_overloaded


def test_a_run_without_time_or_requests_has_figures() -> None:
    refused = RequestTimes(sent_at=0.0, prompt_count=9, error="too long")
    found = figures_of([refused], 0.0, {}, 0.0)
    assert (found.per_s, found.share, found.failed) == (0.0, 0.0, 1)
    assert NONE.share == 0.0


def test_the_most_common_failure_is_kept() -> None:
    errors = ("full", "too long", "too long")
    requests = [RequestTimes(sent_at=0.0, prompt_count=9, error=error) for error in errors]
    found = figures_of(requests, 1.0, {}, 0.0)
    assert (found.failed, found.failure) == (3, "too long")
