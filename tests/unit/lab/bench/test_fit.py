"""The line through tick times."""

import pytest

from jitney_lab.bench.fit import fit, saturation


def test_a_line_is_found_again() -> None:
    line = fit({size: 0.010 + 0.002 * size for size in (1, 2, 4, 8, 16)})
    assert line.fixed_s == pytest.approx(0.010)
    assert line.sequence_s == pytest.approx(0.002)
    assert line.error == pytest.approx(0.0, abs=1e-9)
    assert line.seconds(32) == pytest.approx(0.074)


def test_the_error_says_how_far_it_is() -> None:
    assert fit({1: 0.01, 2: 0.01, 4: 0.01, 8: 0.04}).error > 0.1


def test_saturation_is_where_doubling_stops_helping() -> None:
    assert saturation({1: 10.0, 2: 18.0, 4: 30.0, 8: 31.0}) == 4
    assert saturation({1: 10.0, 2: 18.0, 4: 30.0}) is None


def test_a_step_of_any_length_counts_as_so_many_doublings() -> None:
    # 1.3 times for two doublings are 1.14 each; for four they are 1.07 each.
    assert saturation({1: 10.0, 4: 13.0}) is None
    assert saturation({1: 10.0, 16: 13.0}) == 1
    # 1.08 times for half of a doubling.
    assert saturation({8: 100.0, 11: 108.0}) is None
