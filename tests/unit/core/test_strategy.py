"""When groups depart, who may join them, and when the next one may."""

import pytest

from jitney.core.counters import Counters
from jitney.core.limits import STATIC_WAIT_S
from jitney.core.settings import SchedulerSettings, Strategy
from jitney.core.strategy import Gate
from tests.unit.core.sequences import sequence


def gate(strategy: Strategy, size: int = 2) -> Gate:
    settings = SchedulerSettings(
        model_len_max=1000, sequences_max=size, strategy=strategy, group_wait_s_max=0.25
    )
    return Gate(settings, Counters())


def test_continuous_has_no_gate() -> None:
    """Guards the default: anybody may join at any tick."""
    one = gate(Strategy.CONTINUOUS)
    assert one.may_join(sequence())
    one.joined(sequence())
    assert not one.holds_answers
    assert one.wake_at(sequence()) is None


@pytest.mark.parametrize(
    ("strategy", "wait_s"), [(Strategy.STATIC, STATIC_WAIT_S), (Strategy.DYNAMIC, 0.25)]
)
def test_a_group_departs_when_it_is_full_or_waited_long_enough(
    strategy: Strategy, wait_s: float
) -> None:
    """Guards invariant 8: a group that never fills departs all the same."""
    one, first = gate(strategy), sequence("a", arrived_at=0.0)
    one.open(0.0, 1, first, drains=False)
    assert not one.may_join(first)
    assert one.wake_at(first) == wait_s
    one.open(wait_s, 1, first, drains=False)
    assert one.may_join(first)
    full = gate(strategy)
    full.open(0.0, 2, first, drains=False)
    assert full.may_join(first)


def test_nobody_joins_a_group_on_its_way_but_its_own_members() -> None:
    """Guards the meaning of a group: a preempted member comes back, a stranger waits."""
    one, first, second, third = gate(Strategy.STATIC), *(sequence(name) for name in "abc")
    one.open(0.0, 3, first, drains=False)
    one.joined(first)
    one.joined(second)
    assert one.holds_answers
    assert not one.may_join(third)
    assert one.may_join(first)
    one.ended(first)
    one.open(99.0, 1, third, drains=False)
    assert not one.may_join(third)
    one.ended(second)
    one.open(99.0, 1, third, drains=False)
    assert one.may_join(third)


def test_draining_lets_a_part_of_a_group_depart() -> None:
    """Guards closing: nobody else will come to fill the group."""
    one, first = gate(Strategy.STATIC), sequence("a")
    one.open(0.0, 1, first, drains=True)
    assert one.may_join(first)


def test_adaptive_groups_grow_with_the_queue_and_shrink_with_slow_ticks() -> None:
    """Guards `adaptive`: its group size follows both."""
    one, first = gate(Strategy.ADAPTIVE, size=8), sequence("a")
    for _ in range(20):
        one.observe(10.0)
        one.open(0.0, 1, first, drains=False)
    assert one.may_join(first)
    for _ in range(60):
        one.observe(0.0)
    one.open(0.0, 8, first, drains=False)
    one.open(0.0, 3, first, drains=False)
    assert not one.may_join(first)
