"""`SchedulingPolicy`: an order of waiting requests that users write themselves.

Called on the engine thread, once each time a sequence joins the queue. It gets a `Candidate` and
returns a number. It only orders the queue. A sequence that waited longer than `overtake_s` is still
next, and `max_num_seqs`, memory and shares do not depend on the policy.

Tests: tests/unit/core/rules/test_queue.py.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jitney.core.request import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A waiting sequence, as a policy sees it. Times are seconds on the engine's clock."""

    request_id: str
    arrived_at: float
    """When the engine accepted it."""
    priority: Priority
    tenant: str
    prompt_tokens: int
    generated_tokens: int
    """Above 0 if it ran before and was preempted or paused."""
    max_tokens: int
    """The most tokens that it may generate."""
    work_left: int
    """Tokens still to compute if it runs to its limit."""


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Decides which waiting sequence is next."""

    def rank(self, candidate: Candidate) -> float:
        """Its rank: the smallest is next; of equal ones, the older. Must be quick."""
        ...
