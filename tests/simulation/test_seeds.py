"""The simulation within the suite: 200 seeds, those that once failed, and what they visited."""

from tests.simulation.simulator import run
from tests.simulation.sweep import describe, regression_seeds, sweep

SEEDS = 200


def test_seeds_hold_every_invariant_and_visit_every_rare_path() -> None:
    """Guards invariants 1 to 10: each seed is a world of its own, with faults of its own.

    The second half guards the first: a path that no seed visits is a path that is not checked.
    """
    total = sweep(range(SEEDS))
    assert not total.failures, "\n" + "\n".join(describe(report) for report in total.failures)
    assert total.unreached == []


def test_seeds_that_once_failed_hold() -> None:
    """Guards against the return of a mistake that a seed found."""
    total = sweep(regression_seeds())
    assert not total.failures, "\n" + "\n".join(describe(report) for report in total.failures)


def test_a_seed_repeats_itself() -> None:
    """Guards replay: a failing seed that runs differently the next time is worth nothing."""
    lines: list[list[str]] = [[], []]
    reports = [run(7, each.append) for each in lines]
    assert lines[0] == lines[1]
    assert reports[0] == reports[1]
