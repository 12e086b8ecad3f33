"""When groups depart, who may join them, when the next one may; and the window of continuous."""

from random import Random
from typing import Any

import pytest

from jitney.core.admission import NOBODY
from jitney.core.counters import Counters
from jitney.core.rules.cost import Fit
from jitney.core.rules.gate import Gate, Newcomers, make_gate, size_within
from jitney.core.scheduler_settings import GroupAnswers, SchedulerSettings, Strategy
from jitney.core.sequence import Sequence
from tests.simulation.checkers.joining import worth_it
from tests.unit.core.sequences import sequence


# Any: of every setting's type
def gate(strategy: Strategy, size: int = 2, wait_s: float | None = 0.25, **others: Any) -> Gate:
    settings = SchedulerSettings(
        model_len_max=1000, max_num_seqs=size, strategy=strategy, wait_s=wait_s, **others
    )
    return make_gate(settings, Counters())


def newcomers(*waiting: Sequence, room: int = 64) -> Newcomers:
    last_order = max((each.order for each in waiting), default=0)
    return Newcomers(len(waiting), waiting[0] if waiting else None, room, last_order)


def many(count: int, accepted_at: float = 0.0) -> Newcomers:
    return newcomers(*(sequence(f"a{number}", accepted_at=accepted_at) for number in range(count)))


def opened(one: Gate, now: float, waiting: Newcomers, *, starts_now: bool = False) -> bool:
    """Whether the gate is open for these newcomers."""
    one.open(now, waiting, starts_now=starts_now)
    return one.is_open


def test_continuous_without_a_window_is_always_open() -> None:
    """Guards the default: anybody may join at any tick."""
    one, first = gate(Strategy.CONTINUOUS, wait_s=0.0), sequence(accepted_at=7.0)
    assert opened(one, 7.0, newcomers(first))
    assert one.may_join(first)
    one.joined(first)
    assert not one.holds_answers(NOBODY)
    assert one.wake_at(newcomers(first)) is None


def test_a_window_gathers_newcomers_for_so_long() -> None:
    """Guards the window: the wait is bounded by the oldest newcomer, and known to the loop."""
    one = gate(Strategy.CONTINUOUS, size=8)
    waiting = newcomers(sequence("a", accepted_at=1.0), sequence("b", accepted_at=1.2))
    assert not opened(one, 1.2, waiting)
    assert one.wake_at(waiting) == 1.25
    assert opened(one, 1.25, waiting)
    assert one.wake_at(waiting) is None


@pytest.mark.parametrize("strategy", [Strategy.CONTINUOUS, Strategy.DYNAMIC, Strategy.ADAPTIVE])
@pytest.mark.parametrize(("least", "enough"), [(1, 8), (2, 2), (5, 5)])
def test_a_wait_ends_when_enough_are_here(strategy: Strategy, least: int, enough: int) -> None:
    """Guards `min_batch_size`: who has enough company waits no longer, and all of them start."""
    one = gate(strategy, size=8, min_batch_size=least)
    assert not opened(one, 0.0, many(enough - 1))
    assert opened(one, 0.25, many(enough - 1))
    assert opened(one, 0.0, many(enough))
    if strategy is not Strategy.CONTINUOUS:
        assert departed(gate(strategy, size=8, min_batch_size=least), 8, now=0.0) == 8


def test_a_window_does_not_wait_for_more_than_have_a_place() -> None:
    """Guards newcomers behind a busy engine: whom nobody could join is not waited for."""
    one = gate(Strategy.CONTINUOUS, size=8)
    assert opened(one, 0.0, newcomers(sequence("a"), sequence("b"), room=2))


def test_whoever_ran_before_comes_back_through_a_closed_window() -> None:
    """Guards those who run: a preempted sequence is not delayed by newcomers."""
    one, back, fresh = gate(Strategy.CONTINUOUS, size=8), sequence("a"), sequence("b")
    back.history.started_at = 0.0
    assert not opened(one, 0.0, newcomers(fresh))
    assert one.may_join(back)
    assert not one.may_join(fresh)


@pytest.mark.parametrize(
    ("strategy", "wait_s"),
    [(Strategy.STATIC, 0.25), (Strategy.DYNAMIC, 0.25), (Strategy.STATIC, None)],
)
def test_a_group_departs_when_it_is_full_or_waited_long_enough(
    strategy: Strategy, wait_s: float | None
) -> None:
    """Guards invariant 8: a group that never fills departs all the same, unless it has no timer."""
    one, waiting = gate(strategy, wait_s=wait_s), many(1)
    assert not opened(one, 0.0, waiting)
    assert one.wake_at(waiting) == wait_s
    assert opened(one, wait_s or 1e9, waiting) is (wait_s is not None)
    assert opened(gate(strategy, wait_s=wait_s), 0.0, many(2))


def test_nobody_joins_a_group_on_its_way_but_its_own_members() -> None:
    """Guards the meaning of a group: a preempted member comes back, a stranger waits."""
    one, first, second, third = gate(Strategy.STATIC), *(sequence(name) for name in "abc")
    assert opened(one, 0.0, newcomers(first, second, third))
    for each in (first, second):
        one.joined(each)
        each.history.started_at = 0.0
    assert one.holds_answers(NOBODY)
    assert not one.may_join(third)
    assert one.may_join(first)
    one.left(first)
    opened(one, 99.0, newcomers(third))
    assert not one.may_join(third)
    one.left(second)
    opened(one, 99.0, newcomers(third))
    assert one.may_join(third)


def test_answers_of_a_group_are_handed_out_each_by_choice() -> None:
    """Guards `group_answers`: whoever ends first need not wait for the last."""
    one, first = gate(Strategy.STATIC, group_answers=GroupAnswers.EACH), sequence("a")
    assert opened(one, 9.0, newcomers(first))
    one.joined(first)
    assert not one.holds_answers(NOBODY)


def test_draining_lets_a_part_of_a_group_depart() -> None:
    """Guards closing: nobody else will come to fill the group."""
    one, first = gate(Strategy.STATIC), sequence("a")
    assert opened(one, 0.0, newcomers(first), starts_now=True)
    assert one.may_join(first)


def departed(one: Gate, waiting_count: int, now: float = 99.0) -> int:
    """How many join the group that departs now; it arrives at once."""
    opened(one, now, many(waiting_count))
    joined: list[Sequence] = []
    while len(joined) < waiting_count and one.is_open:
        joined.append(sequence(f"b{len(joined)}"))
        one.joined(joined[-1])
    one.close()
    for each in joined:
        one.left(each)
    return len(joined)


@pytest.mark.parametrize(
    ("fixed_s", "sequence_s", "size"),
    [
        (0.01, 0.005, 16),  # a full group takes 90 ms: within the target
        (0.01, 0.008, 11),  # 138 ms; 11 take 98 ms
        (0.02, 0.03, 7),  # 500 ms; the target would be 2, which is far slower; 7 take half
        (0.15, 0.002, 16),  # one alone takes 152 ms: small groups would be no quicker
        (0.05, 0.01, 16),  # 210 ms; half of it is 5, at two thirds of the rate
        (0.2, None, 16),  # ticks of one size: what others take is not known
        (0.3, -0.001, 16),  # noise
    ],
)
def test_adaptive_groups_are_smaller_while_ticks_are_slow(
    fixed_s: float, sequence_s: float | None, size: int
) -> None:
    """Guards `adaptive`: fewer where that makes ticks quick, and hardly slower in all."""
    one = gate(Strategy.ADAPTIVE, size=16)
    one.observe(Fit(fixed_s, sequence_s))
    assert [departed(one, 100) for _ in range(3)] == [size] * 3
    assert departed(one, 3) == 3
    assert opened(one, 0.0, many(size))
    assert not opened(one, 0.0, many(size - 1))


def test_adaptive_groups_drain_a_deep_queue_after_a_calm_time() -> None:
    """Guards bursts: groups of one say nothing about how many may run together."""
    one = gate(Strategy.ADAPTIVE, size=16)
    one.observe(Fit(0.01, 0.001))
    assert [departed(one, 1) for _ in range(5)] == [1] * 5
    assert not opened(one, 0.0, many(1))
    assert [departed(one, count) for count in (48, 32, 16)] == [16] * 3


def test_more_than_the_quick_ones_start_where_that_is_the_minimum() -> None:
    """Guards `min_batch_size` beside a smaller size of `adaptive`: the user's number holds."""
    one = gate(Strategy.ADAPTIVE, size=16, min_batch_size=12)
    one.observe(Fit(0.02, 0.03))
    assert not opened(one, 0.0, many(11))
    assert departed(one, 100, now=0.0) == 12


def test_a_group_departs_with_its_first_member() -> None:
    """Guards `groups_departed`, and the size: a group that found no memory was counted at every
    tick until it had a member."""
    counters, first, second = Counters(), sequence("a"), sequence("b")
    settings = SchedulerSettings(model_len_max=1000, max_num_seqs=2, strategy=Strategy.STATIC)
    one = make_gate(settings, counters)
    for _ in range(3):
        assert opened(one, 0.0, newcomers(first, second))
    assert counters["groups_departed"] == 0
    for each in (first, second):
        one.joined(each)
    assert counters["groups_departed"] == 1


def test_only_adaptive_groups_change_their_size() -> None:
    """Guards `static` and `dynamic`, whose groups fill every place however slow ticks are."""
    for strategy in (Strategy.STATIC, Strategy.DYNAMIC):
        one = gate(strategy, size=16)
        one.observe(Fit(0.0, 10.0))
        assert [departed(one, 100) for _ in range(3)] == [16, 16, 16]


def test_the_size_by_formula_is_the_size_by_trial() -> None:
    """Guards the checker of the simulation, in which few groups are smaller than they could be."""
    random = Random(7)
    sizes = []
    for _ in range(500):
        fit = Fit(random.uniform(-0.01, 0.1), random.choice((None, random.uniform(-0.001, 0.04))))
        places, target_s = random.randint(1, 32), random.uniform(0.001, 0.2)
        sizes.append((size_within(target_s, places, fit), places))
        assert sizes[-1][0] == worth_it(target_s, places, fit), (fit, places, target_s)
    assert sum(size < places for size, places in sizes) > 50
