"""Who is next, under each policy, and that nobody waits for ever."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any  # Any: what a trace function is given

import pytest

from jitney.core.counters import Counters
from jitney.core.request import Priority
from jitney.core.rules import queue as queue_module
from jitney.core.rules.queue import WaitQueue
from jitney.core.rules.ranking import ranking_of
from jitney.core.scheduler_settings import Policy
from jitney.core.sequence import Sequence
from tests.unit.core.sequences import sequence


def names(queue: WaitQueue, now: float = 0.0) -> list[str]:
    return [each.request.id for each in queue.ordered(now)]


def filled(policy: Policy, *waiting: Sequence, overtake_s: float = 30.0) -> WaitQueue:
    queue = WaitQueue(ranking_of(policy, Counters(), []), overtake_s)
    for each in waiting:
        queue.add(each)
    return queue


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of the core a call runs: work that does not depend on time. The garbage of
    other tests, which may be collected meanwhile, runs lines elsewhere."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_globals.get("__name__", "").startswith("jitney.core."):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("now", [1.0, 1e6])
def test_the_work_does_not_grow_with_those_who_wait(policy: Policy, now: float) -> None:
    """Guards invariant 11: who asks for the next one did walk over all elders, and under `fair`
    each submission over all tenants, which callers choose."""
    work = []
    for count in (10, 500):
        waiting = [
            sequence(f"s{at}", tenant=f"t{at:04}", accepted_at=at / 1e4) for at in range(count)
        ]
        queue = filled(policy, *waiting)
        new = sequence("new", tenant="new", accepted_at=0.5)
        added = lines_run(partial(queue.add, new))
        asked = lines_run(partial(next, queue.ordered(now)))
        removed = lines_run(partial(queue.remove, new))
        work.append((added, asked, removed))
    assert work[0] == work[1]


def test_fifo_is_the_order_of_arrival() -> None:
    """Guards the default: neither length nor class matters."""
    queue = filled(
        Policy.FIFO,
        sequence("a", accepted_at=2.0, priority=Priority.CRITICAL),
        sequence("b", accepted_at=1.0, tokens_max=900),
    )
    assert names(queue) == ["b", "a"]


def test_priority_goes_by_class_and_then_by_age() -> None:
    """Guards the classes: the higher first, the older first within one."""
    queue = filled(
        Policy.PRIORITY,
        sequence("a", accepted_at=0.0, priority=Priority.LOW),
        sequence("b", accepted_at=2.0, priority=Priority.HIGH),
        sequence("c", accepted_at=1.0, priority=Priority.HIGH),
    )
    assert names(queue) == ["c", "b", "a"]


def test_sjf_goes_by_the_work_that_is_left() -> None:
    """Guards `sjf`: prompt and completion both count."""
    queue = filled(
        Policy.SJF,
        sequence("a", prompt=(1,) * 50, tokens_max=1),
        sequence("b", tokens_max=40),
        sequence("c", tokens_max=4),
    )
    assert names(queue) == ["c", "b", "a"]


def test_fair_serves_the_tenant_that_had_least() -> None:
    """Guards fairness: many requests of one tenant do not stand before one of another."""
    queue = filled(
        Policy.FAIR,
        sequence("a", accepted_at=0.0, tenant="many"),
        sequence("b", accepted_at=1.0, tenant="many"),
        sequence("c", accepted_at=2.0, tenant="one"),
    )
    assert queue.live.fair is not None
    queue.live.fair.charge("many", 100)
    assert names(queue) == ["c", "a", "b"]


def test_the_tenants_that_left_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory: callers choose their tenant, so there is no end of them."""
    monkeypatch.setattr(queue_module, "TENANTS_MAX", 2)
    queue = filled(Policy.FAIR, sequence("a", tenant="here"))
    fair = queue.live.fair
    assert fair is not None
    for name in ("first", "second", "third"):
        waiting = sequence(name, accepted_at=1.0, tenant=name)
        queue.add(waiting)
        fair.charge(name, 100)
        queue.remove(waiting)
    for name in ("first", "third"):
        queue.add(sequence(name, accepted_at=1.0, tenant=name))
    fair.charge("here", 1)
    assert names(queue, now=1.0) == ["first", "a", "third"]


def test_a_tenant_that_was_away_earns_no_credit() -> None:
    """Guards against starving others with tokens saved up by being idle."""
    queue = filled(Policy.FAIR, sequence("a", tenant="here"))
    assert queue.live.fair is not None
    queue.live.fair.charge("here", 1000)
    queue.add(sequence("b", tenant="back"))
    queue.live.fair.charge("back", 1)
    assert names(queue) == ["a", "b"]


@pytest.mark.parametrize("first", ["busy", "modest"])
def test_an_idle_time_earns_no_credit(first: str) -> None:
    """Guards `fair`: where nobody was present, who was served less could come first and keep all
    others waiting until it had been served as much."""
    queue = filled(Policy.FAIR)
    assert queue.live.fair is not None
    for tenant, served in (("modest", 15), ("busy", 900)):
        each = sequence(tenant, tenant=tenant)
        queue.add(each)
        queue.live.fair.charge(tenant, served)
        queue.remove(each)
    for tenant in (first, "modest", "busy"):
        for number in range(2):
            queue.add(sequence(f"{tenant}{first}{number}", tenant=tenant))
    queue.live.fair.charge("modest", 3)
    assert names(queue)[0].startswith("busy")


@pytest.mark.parametrize("policy", list(Policy))
def test_elders_come_first_under_every_policy(policy: Policy) -> None:
    """Guards invariant 8: who waited longer than `overtake_s` is next, the oldest first."""
    queue = filled(
        policy,
        sequence("new", accepted_at=9.0, tokens_max=1, priority=Priority.CRITICAL, tenant="x"),
        sequence("older", accepted_at=1.0, tokens_max=800, priority=Priority.LOW, tenant="y"),
        sequence("oldest", accepted_at=0.0, tokens_max=900, priority=Priority.LOW, tenant="y"),
        overtake_s=5.0,
    )
    if queue.live.fair is not None:
        queue.live.fair.charge("y", 1000)
    assert names(queue, now=10.0) == ["oldest", "older", "new"]
    assert names(queue, now=5.0)[0] != "older" or policy is Policy.FIFO


def test_counts_follow_whoever_comes_and_goes() -> None:
    """Guards the bounds of the queue, which are checked against these numbers."""
    first, second = sequence("a", prompt=(1,) * 10), sequence("b", prompt=(1,) * 5)
    queue = filled(Policy.FIFO, first, second)
    assert (queue.count, queue.token_count) == (2, 15)
    queue.remove(first)
    assert (queue.count, queue.token_count, queue.live.work_count) == (1, 5, second.known_max)
    assert queue.live.oldest_newcomer() is second
    queue.remove(second)
    assert queue.live.oldest_newcomer() is None


@pytest.mark.parametrize("policy", [Policy.FIFO, Policy.FAIR])
def test_background_work_is_not_held_back_by_the_share_of_its_key(policy: Policy) -> None:
    """Guards lines of a batch: they take what others leave, also when their key runs its share."""
    line = sequence("b", tenant="key")
    line.is_background = True
    queue = filled(policy, sequence("a", tenant="other"), line)
    assert [each.request.id for each in queue.ordered(0.0, {"key"})] == ["a", "b"]
