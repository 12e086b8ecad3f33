"""One engine of several, as it was last seen: `ReplicaView`. Frozen; any thread.

Tests: tests/unit/cluster/test_overview.py.
"""

from dataclasses import dataclass

from jitney.core.snapshot import Detail, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """Levels, sums since its start, rates of the last seconds, and its detail."""

    name: str
    snapshot: Snapshot
    prompt_tokens: int
    """Of requests that ran there. A request that moved counts on each."""
    cached_tokens: int
    """Of those, found in its cache."""
    completion_tokens: int
    tokens_per_s: float
    prefill_tokens_per_s: float
    detail: Detail | None
    """None before it was first asked. Its times are those of the one who asked."""
