"""Compares what tenants hold with their `Share`: of queue and slots (`Shares`), of memory
(`MemoryShares`).

Only requests with a share are counted. All requests of a tenant have the same share. Called by the
parts of the scheduler only.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from jitney.core import limits
from jitney.core.counters import Counters
from jitney.core.memory import Memory
from jitney.core.prefix import NO_MATCH, Match
from jitney.core.request import Request
from jitney.core.sequence import Sequence
from jitney.errors import QueueFull


def paused_max(waiting_max: int) -> int:
    """How many may be paused, for a queue of this size."""
    assert waiting_max >= 1, waiting_max
    return min(max(1, waiting_max // 4), limits.PAUSED_MAX)


@dataclass(slots=True)
class TenantCounts:
    """Waiting sequences of one tenant and their tokens; its paused and its running sequences."""

    waiting_count: int = 0
    paused_count: int = 0
    waiting_tokens: int = 0
    running_count: int = 0


class Shares:
    """The counts of every tenant with a share and an unfinished sequence."""

    def __init__(self) -> None:
        self._held: dict[str, TenantCounts] = {}
        self._full: set[str] = set()

    @property
    def full(self) -> Set[str]:
        """Tenants that run as many sequences as they may. No more of theirs is admitted."""
        return self._full

    def waiting_count(self, tenants: Set[str]) -> int:
        """How many sequences of these tenants wait."""
        return sum(self.held(tenant).waiting_count for tenant in tenants)

    def held(self, tenant: str) -> TenantCounts:
        """What the tenant holds now."""
        return self._held.get(tenant, TenantCounts())

    def check_room(self, sequences: list[Sequence], counters: Counters, retry_s: float) -> None:
        """Raise QueueFull if a new request is not within its tenant's share of the queue.

        A tenant without waiting sequences may always add one request, even above its share.
        """
        share, held = sequences[0].request.share, self.held(sequences[0].request.tenant)
        if share is None or held.waiting_count == 0:
            return
        token_count = held.waiting_tokens + sum(each.known_count for each in sequences)
        count = held.waiting_count + len(sequences)
        if count <= share.waiting_max and token_count <= share.waiting_tokens_max:
            return
        counters["share_full"] += 1
        raise QueueFull(
            f"{held.waiting_count} requests of this caller with {held.waiting_tokens} tokens "
            f"are waiting already, and its share of the queue is {share.waiting_max} and "
            f"{share.waiting_tokens_max}; try again in {retry_s:.1f} s.",
            retry_s,
        )

    def may_pause(self, sequences: list[Sequence]) -> bool:
        """Whether the tenant of a request may have all these sequences paused as well."""
        share, held = sequences[0].request.share, self.held(sequences[0].request.tenant)
        if share is None:
            return True
        return held.paused_count + len(sequences) <= paused_max(share.waiting_max)

    def count(
        self, sequence: Sequence, *, waiting: int = 0, paused: int = 0, running: int = 0
    ) -> None:
        """Count a sequence that begins (1) or stops (-1) to wait, to be paused or to run."""
        request = sequence.request
        if request.share is None:
            return
        held = self._held.setdefault(request.tenant, TenantCounts())
        held.waiting_count += waiting
        held.waiting_tokens += waiting * sequence.known_count
        held.paused_count += paused
        held.running_count += running
        assert min(held.waiting_count, held.waiting_tokens, held.running_count) >= 0, held
        assert held.paused_count >= 0, held
        if held.running_count >= request.share.running_max:
            self._full.add(request.tenant)
        else:
            self._full.discard(request.tenant)
        if held == TenantCounts():
            del self._held[request.tenant]

    def check(
        self, waiting: list[Sequence], paused: list[Sequence], running: list[Sequence]
    ) -> None:
        """Compare with a recount."""
        again = Shares()
        for sequence in waiting:
            again.count(sequence, waiting=1)
        for sequence in paused:
            again.count(sequence, paused=1)
        for sequence in running:
            again.count(sequence, running=1)
        assert again._held == self._held, (again._held, self._held)
        assert again._full == self._full, (again._full, self._full)


class MemoryShares:
    """Compares the blocks of running sequences with the shares of their tenants.

    A tenant that may run three quarters of the sequences may hold three quarters of the blocks. A
    single sequence of a tenant is always within its share, at any length. While memory is free, a
    tenant may grow beyond its share. When memory runs out, others take that part first.
    """

    def __init__(self, memory: Memory, max_num_seqs: int) -> None:
        self._memory = memory
        self._sequences_max = max_num_seqs

    def has_room(self, sequence: Sequence, match: Match, running: list[Sequence]) -> bool:
        """Whether the tenant would stay within its share if this sequence ran too."""
        assert sequence not in running, "it counts once"
        blocks_max = self._blocks_max(sequence.request)
        tenant = sequence.request.limited_tenant
        own = [each for each in running if each.request.limited_tenant == tenant]
        if not own:
            return True
        held = self._memory.held_by(own) + self._memory.blocks_promised(own)
        # A prefix that is only cached will count as the tenant's.
        source = match.holding
        is_held = source is not None and any(each.slot == source.slot for each in own)
        need = self._memory.blocks_wanted(sequence, match if is_held else NO_MATCH)
        return held + need <= blocks_max

    def over_share(self, running: list[Sequence]) -> dict[str, list[Sequence]]:
        """The sequences of each tenant that holds more than its share with more than one of them.

        They are in the order of `running`, the most senior first.
        """
        by_tenant: dict[str, list[Sequence]] = {}
        for sequence in running:
            if sequence.request.limited_tenant is not None:
                by_tenant.setdefault(sequence.request.limited_tenant, []).append(sequence)
        return {tenant: own for tenant, own in by_tenant.items() if self._is_over(own)}

    def surplus(
        self, over: dict[str, list[Sequence]], ordered: list[Sequence]
    ) -> Iterator[Sequence]:
        """Of these, which are of tenants above their share, those without whom the tenants are
        within it. The caller counts each as gone before it asks for the next."""
        staying = {tenant: self._memory.staying(own) for tenant, own in over.items()}
        for sequence in ordered:
            tenant = sequence.request.limited_tenant
            assert tenant is not None, "who has no share is not above it"
            own = staying[tenant]
            if len(own.slots) > 1 and own.held > self._blocks_max(sequence.request):
                own.leave(sequence)
                yield sequence

    def _is_over(self, own: list[Sequence]) -> bool:
        blocks_max = self._blocks_max(own[0].request)
        return len(own) > 1 and self._memory.held_by(own) > blocks_max

    def _blocks_max(self, request: Request) -> int:
        assert request.share is not None, "a limited tenant has a share"
        capacity = self._memory.ledger.capacity
        return max(1, capacity * request.share.running_max // self._sequences_max)
