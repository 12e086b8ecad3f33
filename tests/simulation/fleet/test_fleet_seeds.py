"""The simulation of a fleet within the suite: small worlds in which much goes wrong."""

import json
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests.simulation.fleet.__main__ import describe, main, values_of
from tests.simulation.fleet.checks import MARKS, End
from tests.simulation.fleet.routers import ROUTERS
from tests.simulation.fleet.simulator import FleetReport, run_fleet
from tests.simulation.fleet.world import FleetWorld, draw_world

SEEDS = 15
REGRESSIONS = (108,)
"""Seeds that once failed."""

CALM = FleetWorld(
    seed=1,
    replica_count=8,
    request_count=600,
    loss_count=1,
    cut_count=0,
    poison_count=0,
    per_s=8.0,
)


def checked(report: FleetReport) -> FleetReport:
    """The report of a run in which no checker found anything."""
    assert report.failure is None, "\n" + describe(report)
    assert report.figures.ended_count == report.world.request_count
    return report


def test_seeds_end_every_request_once_and_visit_every_rare_path() -> None:
    """Guards a caller's stream over the loss of replicas, in worlds with faults of their own.

    The second half guards the first: a path that no seed visits is a path that is not checked.
    """
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        marks += checked(run_fleet(draw_world(seed))).marks
    assert [mark for mark in MARKS if not marks[mark]] == []


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_once_failed_hold(seed: int) -> None:
    """Guards against the return of a mistake that a seed found."""
    checked(run_fleet(draw_world(seed)))


def test_a_seed_repeats_itself() -> None:
    """Guards replay: a failing seed that runs differently the next time is worth nothing."""
    first, again = (checked(run_fleet(draw_world(3))) for _ in range(2))
    assert first.figures.digest == again.figures.digest
    assert values_of(first) == values_of(again)


def test_the_router_computes_less_than_those_that_know_no_prefixes() -> None:
    """Guards the reason for the router: system prompts are computed once, not on every replica."""
    reports = {kind: checked(run_fleet(replace(CALM, router=kind))) for kind in ROUTERS}
    computed = {kind: report.computed_count for kind, report in reports.items()}
    assert computed["expected"] < 0.9 * min(computed["power-of-two"], computed["round-robin"])
    assert len({report.figures.ends[End.FAILED] for report in reports.values()}) == 1


def test_the_command_ends_with_a_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fleet", "--seed", "4", "--small"])
    assert main() == 0
    told = capsys.readouterr()
    values = json.loads(told.out.splitlines()[-1])
    count = draw_world(4).request_count
    assert told.err.splitlines()[-1].startswith(f"{count} of {count} after ")
    assert values["requests_ended"] == count
    assert values["violations"] == 0
