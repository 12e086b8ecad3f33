"""Tests of `benchmarks.adaptive`: the groups that the production scheduler lets depart."""

from benchmarks.adaptive import CALM, DEEP, SEQUENCES_MAX, SLOW, departures

SETTLED = 5
"""Groups after which the first ones, of those who came before anything was measured, are over."""


def test_calm_groups_are_small() -> None:
    """Guards `adaptive` under a calm load: whoever comes waits for one small group at most."""
    sizes = [each.size for each in departures(CALM)][SETTLED:]
    assert len(sizes) > 40
    assert max(sizes) <= 3


def test_deep_groups_fill_every_place() -> None:
    """Guards `adaptive` under a deep load: small groups would leave places empty for nothing."""
    sizes = [each.size for each in departures(DEEP)][SETTLED:]
    assert len(sizes) > 30
    assert set(sizes) == {SEQUENCES_MAX}


def test_slow_groups_stay_near_the_size_whose_ticks_take_the_target() -> None:
    """Guards `adaptive` under a slow load: as many wait as under the deep one, and groups are half
    as large."""
    sizes = [each.size for each in departures(SLOW)][SETTLED:]
    assert len(sizes) > 10
    assert SLOW.size_in_target == 7
    assert all(abs(size - 7) <= 1 for size in sizes), sizes
