"""Compares the memory that tenants hold with their share.

A tenant that may run three quarters of the sequences may hold three quarters of the blocks. A
single sequence of a tenant is always within its share, at any length. While memory is free, a
tenant may grow beyond its share. When memory runs out, others take that part first. Called by the
parts of the scheduler only.

Tests: tests/unit/core/rules/test_shares.py.
"""

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
        assert sequence not in running, "it counts once"
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

    def over_share(self, running: list[Sequence]) -> dict[str, list[Sequence]]:
        """The sequences of each tenant that holds more than its share with more than one of them.

        They are in the order of `running`, the most senior first.
        """
        by_tenant: dict[str, list[Sequence]] = {}
        for sequence in running:
            if sequence.request.limited_tenant is not None:
                by_tenant.setdefault(sequence.request.limited_tenant, []).append(sequence)
        return {tenant: own for tenant, own in by_tenant.items() if self._is_over(own)}

    def _is_over(self, own: list[Sequence]) -> bool:
        blocks_max = self._blocks_max(own[0].request)
        assert blocks_max is not None, "a limited tenant has a share"
        return len(own) > 1 and self._memory.held_by(own) > blocks_max

    def _blocks_max(self, request: Request) -> int | None:
        if request.share is None:
            return None
        capacity = self._memory.ledger.capacity
        return max(1, capacity * request.share.running_max // self._sequences_max)
