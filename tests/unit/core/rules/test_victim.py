"""Who has to make room."""

from dataclasses import replace

from jitney.core.request import Priority, Share
from jitney.core.rules.ranking import seniority
from jitney.core.rules.victim import choose_for_class, order_for_memory
from jitney.core.sequence import Sequence
from tests.unit.core.sequences import running, sequence

SHARE = Share(waiting_max=8, waiting_tokens_max=100, running_max=3)


def newcomer(priority: Priority, tenant: str = "") -> Sequence:
    """One that waits; of a tenant with a share, if one is named."""
    made = sequence("z", priority=priority, tenant=tenant)
    return shared(made) if tenant else made


def shared(made: Sequence) -> Sequence:
    """The same sequence, of a tenant with a share."""
    made.request = replace(made.request, share=SHARE)
    return made


def test_the_cheapest_to_resume_is_preempted() -> None:
    """Guards wasted work: of two that have progressed, the one with less computed goes."""
    long = running(sequence("a"), 0, computed=90, generated=1)
    short = running(sequence("b"), 1, computed=10, generated=1)
    assert order_for_memory([long, short], by_class=False)[0] is short


def test_one_without_progress_is_spared_while_there_is_another() -> None:
    """Guards against thrashing: admitted, preempted, admitted, and never a token."""
    fresh = running(sequence("a"), 0, computed=1)
    old = running(sequence("b"), 1, computed=500, generated=1)
    assert order_for_memory([fresh, old], by_class=False)[0] is old
    assert order_for_memory([fresh], by_class=False)[0] is fresh


def test_the_lowest_class_goes_first_where_classes_count() -> None:
    """Guards the classes under memory pressure, and that other policies do not know them."""
    low = running(sequence("a", priority=Priority.LOW), 0, computed=90, generated=1)
    high = running(sequence("b", priority=Priority.HIGH), 1, computed=1, generated=1)
    assert order_for_memory([high, low], by_class=True)[0] is low
    assert order_for_memory([high, low], by_class=False)[0] is high


def test_nobody_in_flight_is_chosen() -> None:
    """Guards the memory of a batch that has not returned."""
    busy = running(sequence("a"), 0, computed=5, generated=1)
    busy.planned += 1
    assert order_for_memory([busy], by_class=False) == []
    assert not list(choose_for_class([busy], newcomer(Priority.CRITICAL), 0.0, 30.0))


def test_only_lower_classes_that_are_not_aged_are_displaced() -> None:
    """Guards both ends: equals are safe, and so is one that waited its time."""
    low = running(sequence("a", priority=Priority.LOW), 0, computed=5, generated=1)
    assert next(choose_for_class([low], newcomer(Priority.HIGH), now=10.0, overtake_s=30.0)) is low
    assert not list(choose_for_class([low], newcomer(Priority.LOW), now=10.0, overtake_s=30.0))
    assert not list(choose_for_class([low], newcomer(Priority.HIGH), now=40.0, overtake_s=30.0))
    unproven = running(sequence("b", priority=Priority.LOW), 1, computed=5)
    assert not list(
        choose_for_class([unproven], newcomer(Priority.HIGH), now=10.0, overtake_s=30.0)
    )


def test_nobody_is_left_with_fewer_than_the_one_who_displaces_him() -> None:
    """Guards other tenants against a class that is a caller's own claim."""
    theirs = [
        running(shared(sequence(name, tenant="b")), slot, computed=5, generated=1)
        for slot, name in enumerate("abc")
    ]
    critical = newcomer(Priority.CRITICAL, "a")
    assert not list(choose_for_class(theirs[:1], critical, now=1.0, overtake_s=30.0))
    assert next(choose_for_class(theirs[:2], critical, now=1.0, overtake_s=30.0)) is theirs[1]
    low = shared(sequence("l", tenant="b", priority=Priority.LOW))
    low = running(low, 4, computed=5, generated=1)
    assert next(choose_for_class([low], critical, now=1.0, overtake_s=30.0)) is low
    mine = running(shared(sequence("d", tenant="a")), 3, computed=9, generated=1)
    assert next(choose_for_class([*theirs[:2], mine], critical, now=1.0, overtake_s=30.0)) is mine


def test_each_who_is_displaced_counts_for_the_next() -> None:
    """Guards the tenants' balance while many leave for one: it was counted anew for each."""
    theirs = [
        running(shared(sequence(name, tenant="b")), slot, computed=5, generated=1)
        for slot, name in enumerate("abc")
    ]
    mine = running(shared(sequence("d", tenant="a")), 3, computed=9, generated=1)
    critical = newcomer(Priority.CRITICAL, "a")
    chosen = list(choose_for_class([*theirs, mine], critical, now=1.0, overtake_s=30.0))
    assert chosen == [theirs[2], mine, theirs[1]]


def test_seniority_is_class_then_age() -> None:
    """Guards the order that preemption follows, without which it could go round in circles."""
    young = sequence("a", accepted_at=5.0, priority=Priority.HIGH)
    old = sequence("b", accepted_at=1.0)
    assert seniority(old, by_class=False) < seniority(young, by_class=False)
    assert seniority(young, by_class=True) < seniority(old, by_class=True)
    old.is_elder = True
    assert seniority(old, by_class=True) < seniority(young, by_class=True)


def test_an_elder_is_the_last_to_go_of_any_class() -> None:
    """Guards an elder of a low class, whose memory every higher class would take again."""
    elder = running(sequence("a", priority=Priority.LOW), 0, computed=5, generated=1)
    elder.is_elder = True
    high = running(sequence("b", priority=Priority.HIGH), 1, computed=90, generated=1)
    assert order_for_memory([elder, high], by_class=True)[0] is high
