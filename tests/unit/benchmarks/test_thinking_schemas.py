"""Tests of the verdict of `benchmarks.thinking_schemas`: a run without its kills shows nothing."""

from dataclasses import replace

import pytest

from benchmarks.thinking_schemas import Counted

GOOD = Counted(answers=3, kills=2, killed_in_thought=1, killed_in_object=1)


def test_all_answers_and_kills_at_both_points_are_good() -> None:
    """Guards the figure: a run as it should be."""
    assert GOOD.is_good(3)
    assert not GOOD.is_good(4)
    assert not replace(GOOD, wrong=["not of the schema"]).is_good(3)


@pytest.mark.parametrize("missing", ["kills", "killed_in_thought", "killed_in_object"])
def test_a_run_that_killed_nothing_is_not_good(missing: str) -> None:
    """Guards against a check that is always right."""
    found = replace(GOOD)
    setattr(found, missing, 0)
    assert not found.is_good(3)
