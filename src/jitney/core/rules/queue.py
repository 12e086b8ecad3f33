"""The queue: which waiting sequence is next under each policy, and the rule that bounds every wait.

The rule of elders (invariant 8): a sequence that has waited longer than `overtake_s` is next, the
oldest first, under any policy. So no sequence is overtaken by one that arrived more than
`overtake_s` later. The exception is background work: every live sequence goes first, at any age,
and the rule holds within it (`core/rules/background.py`). Tenants that already run their full
share are skipped as a whole, which costs nothing per sequence; a share of the memory is looked at
for each sequence (`core/admission.py`). `check_room` keeps the queue within its bounds. Called by
the parts of the scheduler only.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Set
from operator import itemgetter

from jitney.core.counters import Counters
from jitney.core.rules.ranking import Ranking, by_arrival, by_order
from jitney.core.rules.shares import Shares
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence
from jitney.errors import QueueFull

Rank = tuple[float, float, int]
"""The sort key of a queue: the policy's number, arrival, order of submission."""

_RANK = itemgetter(0)

TENANTS_MAX = 4096
"""So many absent tenants are remembered, with their count of served tokens."""


class RankedQueue:
    """A queue sorted by a number that is computed when a sequence joins."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self.ranked: list[tuple[Rank, Sequence]] = []
        """The next one first. No two ranks are equal."""
        self._rank_of: dict[Sequence, Rank] = {}

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait here."""
        rank = (self._ranking(sequence), sequence.accepted_at, sequence.order)
        insort(self.ranked, (rank, sequence), key=_RANK)
        self._rank_of[sequence] = rank

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        # The rank from when it joined: it might be different now.
        rank = self._rank_of.pop(sequence)
        del self.ranked[bisect_left(self.ranked, rank, key=_RANK)]


class PartedQueue:
    """A queue in parts: one for each tenant that has a share, and one for all others."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._parts: dict[str | None, RankedQueue] = {}

    def part_of(self, sequence: Sequence) -> str | None:
        """The name of the part in which a sequence waits."""
        return sequence.request.limited_tenant

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait here."""
        part = self.part_of(sequence)
        if part not in self._parts:
            self._parts[part] = RankedQueue(self._ranking)
        self._parts[part].add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        part = self.part_of(sequence)
        assert part in self._parts, "nothing of this part waits here"
        self._parts[part].remove(sequence)
        if not self._parts[part].ranked:
            del self._parts[part]

    def count(self, without: Set[str]) -> int:
        """How many wait, without those of these tenants."""
        return sum(len(queue.ranked) for part, queue in self._parts.items() if part not in without)

    def ordered(self, without: Set[str]) -> Iterator[Sequence]:
        """All but those of these tenants, the next one first. Nothing may change meanwhile."""
        queues = [queue.ranked for part, queue in self._parts.items() if part not in without]
        ranked = queues[0] if len(queues) == 1 else heapq.merge(*queues, key=_RANK)
        return (sequence for _, sequence in ranked)


class TenantQueues(PartedQueue):
    """A queue per tenant. The next tenant is the one that was served the fewest tokens.

    A tenant that comes back starts at the level of the least served present one; if there is none,
    at that of the most served. Otherwise it could block the others after being idle.
    """

    def __init__(self) -> None:
        super().__init__(by_arrival)
        self._running: Counter[str] = Counter()
        self._served: dict[str, float] = {}
        self._most = 0.0
        """What the most served tenant ever was served."""
        self._present: list[tuple[float, str]] = []
        """The tenants of which a sequence waits or runs, the least served first. Callers may choose
        their tenant, so nothing here walks over all of them."""
        self._absent: dict[str, None] = {}
        """The other tenants that were served, in the order in which they left."""

    def part_of(self, sequence: Sequence) -> str:
        """Its tenant, with or without a share."""
        return sequence.request.tenant

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait in its tenant's queue."""
        tenant = sequence.request.tenant
        if not self._is_present(tenant):
            least = self._present[0][0] if self._present else self._most
            self._absent.pop(tenant, None)
            self._served[tenant] = max(self._served.get(tenant, 0.0), least)
            insort(self._present, (self._served[tenant], tenant))
        super().add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        super().remove(sequence)
        self._leave_if_absent(sequence.request.tenant)

    def ordered(self, without: Set[str]) -> Iterator[Sequence]:
        """The least served tenant's sequences first. Nothing may change meanwhile."""
        for _, tenant in self._present:
            if tenant in self._parts and tenant not in without:
                for _, sequence in self._parts[tenant].ranked:
                    yield sequence

    def admit(self, sequence: Sequence) -> None:
        """The sequence runs: its tenant is present even if nothing of it waits."""
        assert sequence.request.tenant in self._parts, "it waits here until it runs"
        self._running[sequence.request.tenant] += 1

    def leave(self, sequence: Sequence) -> None:
        """The sequence does not run any more."""
        tenant = sequence.request.tenant
        self._running[tenant] -= 1
        assert self._running[tenant] >= 0, tenant
        if not self._running[tenant]:
            del self._running[tenant]
            self._leave_if_absent(tenant)

    def charge(self, tenant: str, token_count: int) -> None:
        """The tenant of a sequence that runs was served so many tokens."""
        assert token_count >= 0, token_count
        del self._present[self._place_of(tenant)]
        self._served[tenant] += token_count
        self._most = max(self._most, self._served[tenant])
        insort(self._present, (self._served[tenant], tenant))

    def _is_present(self, tenant: str) -> bool:
        return tenant in self._parts or tenant in self._running

    def _leave_if_absent(self, tenant: str) -> None:
        if not self._is_present(tenant):
            del self._present[self._place_of(tenant)]
            self._absent[tenant] = None
            if len(self._absent) > TENANTS_MAX:
                first = next(iter(self._absent))
                del self._absent[first], self._served[first]

    def _place_of(self, tenant: str) -> int:
        place = bisect_left(self._present, (self._served[tenant], tenant))
        assert self._present[place][1] == tenant, tenant
        return place


class Lane:
    """Waiting sequences of one kind, live or background, with their counts."""

    def __init__(self, ranking: Ranking | None, overtake_s: float) -> None:
        """Without a ranking, the policy is `fair`."""
        self._overtake_s = overtake_s
        self._by_policy = TenantQueues() if ranking is None else PartedQueue(ranking)
        self.fair = self._by_policy if isinstance(self._by_policy, TenantQueues) else None
        self._arrivals = PartedQueue(by_arrival)
        self._newcomers = PartedQueue(by_order)
        """Waiting sequences that never ran. One from another engine is older than it is here."""
        self.count = 0
        self.token_count = 0
        self.work_count = 0

    def newcomer_count(self, without: Set[str] = frozenset()) -> int:
        """How many wait and never ran, without those of these tenants."""
        return self._newcomers.count(without)

    def add(self, sequence: Sequence) -> None:
        """Let the sequence wait. A preempted one keeps its age."""
        assert sequence.slot is None, "a waiting sequence has no slot"
        self._by_policy.add(sequence)
        self._arrivals.add(sequence)
        if not sequence.has_started:
            self._newcomers.add(sequence)
        self.count += 1
        self.token_count += sequence.known_count
        self.work_count += sequence.known_max

    def remove(self, sequence: Sequence) -> None:
        """The sequence was admitted, or ended."""
        self._by_policy.remove(sequence)
        self._arrivals.remove(sequence)
        if not sequence.has_started:
            self._newcomers.remove(sequence)
        self.count -= 1
        self.token_count -= sequence.known_count
        self.work_count -= sequence.known_max
        assert min(self.token_count, self.work_count) >= 0, (self.token_count, self.work_count)
        assert self.count >= 0, self.count

    def rank_again(self, sequence: Sequence) -> None:
        """Sort the sequence again, because its rank has changed."""
        if self.fair is None:
            self._by_policy.remove(sequence)
            self._by_policy.add(sequence)

    def ordered(self, now: float, without: Set[str] = frozenset()) -> Iterator[Sequence]:
        """Elders by age, then the others by policy, without those of these tenants."""
        for sequence in self._arrivals.ordered(without):
            if now - sequence.accepted_at <= self._overtake_s:
                break
            yield sequence
        for sequence in self._by_policy.ordered(without):
            if now - sequence.accepted_at <= self._overtake_s:
                yield sequence

    def oldest_newcomer(self, without: Set[str] = frozenset()) -> Sequence | None:
        """Of the waiting sequences that never ran, the one submitted first, without those of these
        tenants."""
        return next(self._newcomers.ordered(without), None)


class WaitQueue:
    """All waiting sequences: the live ones, and after them the background ones.

    The scheduler checks the bounds before it adds.
    """

    def __init__(self, ranking: Ranking | None, overtake_s: float) -> None:
        """Without a ranking, the policy is `fair`."""
        self.live = Lane(ranking, overtake_s)
        self.background = Lane(ranking, overtake_s)
        """Under `fair` it has its own count of served tokens."""
        self.shares = Shares()

    @property
    def count(self) -> int:
        """How many wait."""
        return self.live.count + self.background.count

    @property
    def token_count(self) -> int:
        """The known tokens of all that wait."""
        return self.live.token_count + self.background.token_count

    def lane_of(self, sequence: Sequence) -> Lane:
        """Where this sequence waits, when it waits."""
        return self.background if sequence.is_background else self.live

    def add(self, sequence: Sequence) -> None:
        """Let the sequence wait. A preempted one keeps its age."""
        self.lane_of(sequence).add(sequence)
        self.shares.count(sequence, waiting=1)

    def remove(self, sequence: Sequence) -> None:
        """The sequence was admitted, or ended."""
        self.lane_of(sequence).remove(sequence)
        self.shares.count(sequence, waiting=-1)

    def ordered(self, now: float, without: Set[str] = frozenset()) -> Iterator[Sequence]:
        """The live ones, the next first, then the background ones, without these tenants."""
        yield from self.live.ordered(now, without)
        # Background work has no share, whatever its key has.
        yield from self.background.ordered(now)

    def live_count(self, without: Set[str], *, newcomers: bool) -> int:
        """How many live ones wait, without those of these tenants, and newcomers only if asked."""
        count = self.live.count - self.shares.waiting_count(without)
        assert count >= 0, count
        return count if newcomers else count - self.live.newcomer_count(without)


def check_room(
    queue: WaitQueue,
    sequences: list[Sequence],
    settings: SchedulerSettings,
    counters: Counters,
    retry_s: float,
) -> None:
    """Raise QueueFull if there is no room for the sequences of a new request."""
    assert sequences, "a request has a sequence"
    assert retry_s >= 0.0, retry_s
    queue.shares.check_room(sequences, counters, retry_s)
    # Background sequences take no room from live ones.
    before = queue if sequences[0].is_background else queue.live
    count = before.count + len(sequences)
    token_count = before.token_count + sum(each.known_count for each in sequences)
    requests_max, tokens_max = settings.max_num_queued_reqs, settings.max_num_queued_tokens
    # An empty queue takes any request that fits the model, even above the bounds.
    if before.count == 0 or (count <= requests_max and token_count <= tokens_max):
        return
    counters["queue_full"] += 1
    raise QueueFull(
        f"{before.count} requests with {before.token_count} tokens are waiting already "
        f"(the limits are {requests_max} and {tokens_max}); try again in {retry_s:.1f} s.",
        retry_s,
    )
