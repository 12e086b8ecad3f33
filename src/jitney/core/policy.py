"""An order of the waiting that is not one of ours: `SchedulingPolicy`.

Implemented by whoever runs the engine and called on the engine thread, once each time that a
sequence joins the queue. It is told what it may know and answers with a number. It orders the
waiting and nothing else: who has waited longer than `overtake_s` is next all the same, and places,
memory and shares are not its matter.

Tests: tests/unit/core/test_queue.py.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jitney.core.request import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sequence that waits, as a policy sees it. Times are seconds on the engine's own clock."""

    request_id: str
    arrived_at: float
    priority: Priority
    tenant: str
    prompt_tokens: int
    generated_tokens: int
    """Above 0 when it ran before and was preempted or paused."""
    max_tokens: int
    """Tokens that it may generate in all."""
    work_left: int
    """Tokens still to compute if it runs to its limit."""


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Who among the waiting is next."""

    def rank(self, candidate: Candidate) -> float:
        """Its place: the smallest number is next, and of equal ones the older. Must be quick."""
        ...
