"""What tenants hold of the memory, against what their share of the places entitles them to.

Who may run three quarters of the sequences may hold three quarters of the blocks. One sequence of
a tenant is always within its share, however long. Growth beyond the share is not stopped while
memory is free; it is what others take back first when it is not. Called by the scheduler's parts
only.

Tests: tests/unit/core/test_shares.py.
"""

from collections.abc import Iterable, Set

from jitney.core.memory import Memory
from jitney.core.prefix import NO_MATCH, Match
from jitney.core.request import Request
from jitney.core.sequence import Sequence


class Occupancy:
    """Compares what those who run hold with their tenants' shares."""

    def __init__(self, memory: Memory, max_num_seqs: int) -> None:
        self._memory = memory
        self._sequences_max = max_num_seqs

    def has_room(self, sequence: Sequence, match: Match, running: list[Sequence]) -> bool:
        """Whether the sequence, if it ran too, would be within its tenant's share."""
        blocks_max = self._blocks_max(sequence.request)
        own = _of(sequence.request.sharer, running)
        if blocks_max is None or not own:
            return True
        held = self._memory.held_by(own) + self._memory.blocks_promised(own)
        # What only a cached prefix holds is the tenant's from then on.
        is_held = match.holding is not None and match.holding.sequence in own
        wanted = self._memory.blocks_wanted(sequence, match if is_held else NO_MATCH)
        return held + wanted <= blocks_max

    def beyond(self, running: list[Sequence]) -> Set[str]:
        """Tenants who hold more than their share, with more than one sequence."""
        by_sharer: dict[str, list[Sequence]] = {}
        for sequence in running:
            if sequence.request.sharer is not None:
                by_sharer.setdefault(sequence.request.sharer, []).append(sequence)
        found = set()
        for sharer, own in by_sharer.items():
            blocks_max = self._blocks_max(own[0].request)
            assert blocks_max is not None, "a sharer has a share"
            if len(own) > 1 and self._memory.held_by(own) > blocks_max:
                found.add(sharer)
        return found

    def _blocks_max(self, request: Request) -> int | None:
        if request.share is None:
            return None
        capacity = self._memory.ledger.capacity
        return max(1, capacity * request.share.running_max // self._sequences_max)


def spare(running: Iterable[Sequence], tenants: Set[str]) -> list[Sequence]:
    """The sequences of these tenants but for the most senior one of each, in order of seniority.

    That one is not sent back because of its tenant: every tenant goes on with something.
    """
    seen: set[str] = set()
    found = []
    for sequence in running:
        sharer = sequence.request.sharer
        if sharer is None or sharer not in tenants:
            continue
        if sharer in seen:
            found.append(sequence)
        seen.add(sharer)
    return found


def _of(sharer: str | None, running: list[Sequence]) -> list[Sequence]:
    return [sequence for sequence in running if sequence.request.sharer == sharer]
