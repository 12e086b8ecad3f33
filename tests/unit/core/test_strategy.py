"""When groups depart, who may join them, and when the next one may."""

import pytest

from jitney.core.counters import Counters
from jitney.core.sequence import Sequence
from jitney.core.settings import SchedulerSettings, Strategy
from jitney.core.strategy import Gate
from tests.unit.core.sequences import sequence


def gate(strategy: Strategy, size: int = 2) -> Gate:
    settings = SchedulerSettings(
        model_len_max=1000, sequences_max=size, strategy=strategy, wait_s=0.25
    )
    return Gate(settings, Counters())


def test_continuous_has_no_gate() -> None:
    """Guards the default: anybody may join at any tick."""
    one = gate(Strategy.CONTINUOUS)
    assert one.may_join(sequence())
    one.joined(sequence())
    assert not one.holds_answers
    assert one.wake_at(sequence()) is None


@pytest.mark.parametrize("strategy", [Strategy.STATIC, Strategy.DYNAMIC])
def test_a_group_departs_when_it_is_full_or_waited_long_enough(strategy: Strategy) -> None:
    """Guards invariant 8: a group that never fills departs all the same."""
    wait_s = 0.25
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


def departed(one: Gate, waiting_count: int, now: float = 99.0) -> int:
    """How many join the group that departs now; it arrives at once."""
    one.open(now, waiting_count, sequence("a", arrived_at=0.0), drains=False)
    joined: list[Sequence] = []
    while len(joined) < waiting_count and one.is_open:
        joined.append(sequence(f"b{len(joined)}"))
        one.joined(joined[-1])
    one.close()
    for each in joined:
        one.ended(each)
    return len(joined)


def test_adaptive_groups_are_smaller_while_ticks_are_slow() -> None:
    """Guards `adaptive`: the places of a group are those of its size, not all that there are."""
    one = gate(Strategy.ADAPTIVE, size=16)
    assert departed(one, 100) == 16
    for _ in range(20):
        one.observe(10.0)
    assert [departed(one, 100) for _ in range(9)] == [12, 9, 6, 4, 3, 2, 1, 1, 1]


def test_adaptive_groups_are_larger_while_many_wait() -> None:
    """Guards `adaptive`: it grows with the queue, in a few groups, up to every place."""
    one = gate(Strategy.ADAPTIVE, size=16)
    assert [departed(one, 1) for _ in range(5)] == [1] * 5
    assert [departed(one, 100) for _ in range(7)] == [2, 3, 4, 6, 9, 13, 16]


def test_adaptive_groups_wait_to_fill_up_for_less_and_less_when_few_come() -> None:
    """Guards a calm load: where groups of one depart, the next one waits for nobody."""
    one, first = gate(Strategy.ADAPTIVE, size=8), sequence("a", arrived_at=0.0)
    one.open(0.0, 1, first, drains=False)
    assert not one.may_join(first)
    assert [departed(one, 1) for _ in range(4)] == [1] * 4
    assert departed(one, 1, now=0.0) == 1


def test_the_size_of_an_adaptive_group_depends_on_departures_only() -> None:
    """Guards the size against being asked for: arrivals that let nobody depart change nothing."""
    often, once = (gate(Strategy.ADAPTIVE, size=16) for _ in range(2))
    for _ in range(20):
        often.open(0.0, 1, sequence("a", arrived_at=0.0), drains=False)
    assert departed(often, 12) == departed(once, 12) == 12


def test_only_adaptive_groups_change_their_size() -> None:
    """Guards `static` and `dynamic`, whose groups fill every place however slow ticks are."""
    for strategy in (Strategy.STATIC, Strategy.DYNAMIC):
        one = gate(strategy, size=16)
        for _ in range(20):
            one.observe(10.0)
        assert [departed(one, 100) for _ in range(3)] == [16, 16, 16]
