"""Who is before whom: the number by which each policy sorts the queue, and seniority, by which the
running sequences are sorted. The smallest is the first.

The number is computed once each time a sequence joins the queue. A user's policy may raise, or
return something that is not a number. The sequence then gets rank 0, and the mistake is counted and
logged. Called by the parts of the scheduler only.

Tests: tests/unit/core/rules/test_queue.py and test_victim.py.
"""

import math
from collections.abc import Callable
from functools import partial

from jitney.core.counters import Counters
from jitney.core.request import Priority
from jitney.core.scheduler_settings import Candidate, Policy, SchedulingPolicy
from jitney.core.sequence import Sequence

ABOVE_ALL = max(Priority) + 1
"""The standing of an elder."""

Ranking = Callable[[Sequence], float]

COMPLAINTS_MAX = 10
"""Mistakes of a policy that are logged. The counter counts them all."""


def seniority(sequence: Sequence, *, by_class: bool) -> tuple[bool, int, float, int]:
    """Of running sequences: live, then standing (if the policy uses classes), then age."""
    rank = -standing(sequence) if by_class else 0
    return (sequence.is_background, rank, sequence.accepted_at, sequence.order)


def standing(sequence: Sequence) -> int:
    """Its class. An elder is above all of them, or every higher class would take its memory."""
    return ABOVE_ALL if sequence.is_elder else sequence.priority


def by_arrival(sequence: Sequence) -> float:
    """All are equal, so the older is next."""
    return 0.0


def by_order(sequence: Sequence) -> float:
    """The one that was submitted earlier is next."""
    return float(sequence.order)


def by_class(sequence: Sequence) -> float:
    """The higher class is next."""
    return -float(sequence.priority)


def by_work(sequence: Sequence) -> float:
    """The one with the least left to compute is next."""
    return float(sequence.work_left)


def ranking_of(
    policy: Policy | SchedulingPolicy, counters: Counters, complaints: list[str]
) -> Ranking | None:
    """The ranking of a policy; None for `fair`, which sorts tenants and not requests.

    Mistakes of a user's policy are added to the complaints.
    """
    if not isinstance(policy, Policy):
        return partial(_ask, policy, counters, complaints)
    rankings = {Policy.FIFO: by_arrival, Policy.PRIORITY: by_class, Policy.SJF: by_work}
    return rankings.get(policy)


def _ask(
    policy: SchedulingPolicy, counters: Counters, complaints: list[str], sequence: Sequence
) -> float:
    """The number of a user's policy, or 0 if it gives none."""
    try:
        rank = float(policy.rank(_candidate(sequence)))
        if math.isnan(rank):
            raise ValueError("NaN is no rank")
    except BaseException as error:
        # Even SystemExit: a policy must not end the engine.
        counters["policy_faults"] += 1
        if counters["policy_faults"] <= COMPLAINTS_MAX:
            complaints.append(
                f"The policy {type(policy).__name__} gave request {sequence.request.id} no "
                f"rank, so its rank is 0: {type(error).__name__}{_reason(error)}"
            )
        return 0.0
    return rank


def _reason(error: BaseException) -> str:
    """The text of the error, if it can be had."""
    try:
        return f": {str(error)[:200]}" if str(error) else ""
    except BaseException:
        return ""


def _candidate(sequence: Sequence) -> Candidate:
    return Candidate(
        request_id=str(sequence.request.id),
        arrived_at=sequence.accepted_at,
        priority=sequence.priority,
        tenant=sequence.request.tenant,
        prompt_tokens=sequence.prompt_count,
        generated_tokens=sequence.completion_count,
        max_tokens=sequence.known_max - sequence.prompt_count,
        work_left=sequence.work_left,
    )
