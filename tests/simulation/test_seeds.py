"""The simulation within the suite: seeds in parts, so that workers share them, those that once
failed, and seeds that visit every rare path.
"""

import pytest

from tests.simulation.simulator import run
from tests.simulation.sweep import describe, regression_seeds, sweep

PARTS, PART = 6, 20
RARE = (9, 11, 16, 25, 26, 29, 31, 39, 42, 47, 48, 51, 83, 99, 117, 172)
"""Seeds that together visit every path. When worlds are drawn otherwise, find others among the
first 200: `python -m tests.simulation --count 200` prints what is visited."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_hold_every_invariant(part: int) -> None:
    """Guards invariants 1 to 10: each seed is a world of its own, with faults of its own."""
    elsewhere = {*RARE, *regression_seeds()}
    total = sweep(set(range(part * PART, (part + 1) * PART)) - elsewhere)
    assert not total.failures, "\n" + "\n".join(describe(report) for report in total.failures)


def test_seeds_visit_every_rare_path() -> None:
    """Guards the test above: a path that no seed visits is a path that is not checked."""
    total = sweep(RARE)
    assert not total.failures, "\n" + "\n".join(describe(report) for report in total.failures)
    assert total.unreached == []


@pytest.mark.parametrize("seed", regression_seeds())
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    """Guards against the return of a mistake that a seed found."""
    report = run(seed)
    assert report.failure is None, "\n" + describe(report)


def test_a_seed_repeats_itself() -> None:
    """Guards replay: a failing seed that runs differently the next time is worth nothing."""
    lines: list[list[str]] = [[], []]
    reports = [run(7, each.append) for each in lines]
    assert lines[0] == lines[1]
    assert reports[0] == reports[1]
