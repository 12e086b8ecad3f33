"""Compares the memory that tenants hold with their share.

A tenant that may run three quarters of the sequences may hold three quarters of the blocks. A
single sequence of a tenant is always within its share, at any length. While memory is free, a
tenant may grow beyond its share. When memory runs out, others take that part first. Called by the
parts of the scheduler only.

Tests: tests/unit/core/test_shares.py.
"""

from collections.abc import Iterable, Set

from jitney.core.memory import Memory
from jitney.core.prefix import NO_MATCH, Match
from jitney.core.request import Request
from jitney.core.sequence import Sequence


class Occupancy:
    """Compares the blocks of running sequences with the shares of their tenants."""

    def __init__(self, memory: Memory, max_num_seqs: int) -> None:
        self._memory = memory
        self._sequences_max = max_num_seqs

    def has_room(self, sequence: Sequence, match: Match, running: list[Sequence]) -> bool:
        """Whether the tenant would stay within its share if this sequence ran too."""
        blocks_max = self._blocks_max(sequence.request)
        tenant = sequence.request.limited_tenant
        own = [each for each in running if each.request.limited_tenant == tenant]
        if blocks_max is None or not own:
            return True
        held = self._memory.held_by(own) + self._memory.blocks_promised(own)
        # A prefix that is only cached will count as the tenant's.
        is_held = match.holding is not None and match.holding.sequence in own
        wanted = self._memory.blocks_wanted(sequence, match if is_held else NO_MATCH)
        return held + wanted <= blocks_max

    def over_share(self, running: list[Sequence]) -> Set[str]:
        """Tenants that hold more than their share, with more than one sequence."""
        by_tenant: dict[str, list[Sequence]] = {}
        for sequence in running:
            if sequence.request.limited_tenant is not None:
                by_tenant.setdefault(sequence.request.limited_tenant, []).append(sequence)
        found = set()
        for tenant, own in by_tenant.items():
            blocks_max = self._blocks_max(own[0].request)
            assert blocks_max is not None, "a tenant has a share"
            if len(own) > 1 and self._memory.held_by(own) > blocks_max:
                found.add(tenant)
        return found

    def _blocks_max(self, request: Request) -> int | None:
        if request.share is None:
            return None
        capacity = self._memory.ledger.capacity
        return max(1, capacity * request.share.running_max // self._sequences_max)


def all_but_first(running: Iterable[Sequence], tenants: Set[str]) -> list[Sequence]:
    """The sequences of these tenants without the most senior one of each, in order of seniority.

    The most senior one goes on, so that every tenant makes progress.
    """
    seen: set[str] = set()
    found = []
    for sequence in running:
        tenant = sequence.request.limited_tenant
        if tenant is None or tenant not in tenants:
            continue
        if tenant in seen:
            found.append(sequence)
        seen.add(tenant)
    return found
