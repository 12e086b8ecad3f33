"""The loads of `jitney bench strategies`."""

import pytest

from jitney_lab.bench.strategies import CHANGES
from jitney_lab.cli.bench import loads_of


def test_loads_of_hours_are_announced_before_they_begin(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards patience: a rate with too many zeros took weeks without a word."""
    (stream, *others) = loads_of(3, 2, 1e-6, seed=0, slots=4)
    assert others
    hours = 2 * len(CHANGES) * stream.jobs[-1].at_s / 3600
    assert f"after {hours:,.1f} hours; if that is too long" in capsys.readouterr().err
    loads_of(3, 2, 10.0, seed=0, slots=4)
    assert capsys.readouterr().err == ""
