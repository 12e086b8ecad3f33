"""The queue: which waiting sequence is next under each policy, and the rule that bounds every wait.

The rule of elders (invariant 8): a sequence that has waited longer than `overtake_s` is next, the
oldest first, under any policy. So no sequence is overtaken by one that arrived more than
`overtake_s` later. Tenants that already run their full share are skipped as a whole, which costs
nothing per sequence. Called by the scheduler only.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Set
from typing import Protocol

from jitney.core.ranking import Ranking, by_arrival
from jitney.core.sequence import Sequence
from jitney.core.shares import Shares

Rank = tuple[float, float, int]
"""The sort key of a line: the policy's number, arrival, order of submission."""

TENANTS_MAX = 4096
"""Above this many tenants, absent ones are forgotten, with their count of served tokens."""


class WaitLine(Protocol):
    """An order of waiting sequences."""

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        ...

    def ordered(self, without: Set[str]) -> Iterator[Sequence]:
        """All but those of these tenants, the next first. The line must not change meanwhile."""
        ...


class RankedLine:
    """A line sorted by a number that is computed when a sequence joins."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._ranks: list[Rank] = []
        self._sequences: dict[Rank, Sequence] = {}
        self._rank_of: dict[Sequence, Rank] = {}

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        rank = (self._ranking(sequence), sequence.arrived_at, sequence.order)
        assert rank not in self._sequences, rank
        insort(self._ranks, rank)
        self._sequences[rank] = sequence
        self._rank_of[sequence] = rank

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        # The rank from when it joined: it might be different now.
        rank = self._rank_of.pop(sequence)
        del self._sequences[rank]
        del self._ranks[bisect_left(self._ranks, rank)]

    def ranked(self) -> Iterator[tuple[Rank, Sequence]]:
        """All of them, the next one first."""
        return ((rank, self._sequences[rank]) for rank in self._ranks)

    def ordered(self) -> Iterator[Sequence]:
        """All of them, the next one first."""
        return (self._sequences[rank] for rank in self._ranks)

    @property
    def count(self) -> int:
        """How many wait here."""
        return len(self._ranks)


class PartedLine:
    """A line in parts: one for each tenant that has a share, and one for all others."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._parts: dict[str | None, RankedLine] = {}

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        self._parts.setdefault(sequence.request.sharer, RankedLine(self._ranking)).add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        part = sequence.request.sharer
        self._parts[part].remove(sequence)
        if not self._parts[part].count:
            del self._parts[part]

    def count(self, without: Set[str]) -> int:
        """How many wait, without those of these tenants."""
        return sum(line.count for part, line in self._parts.items() if part not in without)

    def ordered(self, without: Set[str]) -> Iterator[Sequence]:
        """All but those of these tenants, the next one first."""
        lines = [line for part, line in self._parts.items() if part not in without]
        if len(lines) == 1:
            return lines[0].ordered()
        # No two ranks are equal, so sequences are never compared.
        return (each for _, each in heapq.merge(*(line.ranked() for line in lines)))


class FairLine:
    """A line per tenant. The next tenant is the one that was served the fewest tokens.

    A tenant that comes back starts at the level of the least served present one. Otherwise it could
    block the others after being idle.
    """

    def __init__(self) -> None:
        self._lines: dict[str, RankedLine] = {}
        self._waiting: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._served: dict[str, float] = {}

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its tenant's line."""
        tenant = sequence.request.tenant
        if not self._waiting.get(tenant) and not self._running.get(tenant):
            here = [
                self._served[name]
                for name in self._served
                if self._waiting.get(name) or self._running.get(name)
            ]
            self._served[tenant] = max(self._served.get(tenant, 0.0), min(here, default=0.0))
        self._lines.setdefault(tenant, RankedLine(by_arrival)).add(sequence)
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        tenant = sequence.request.tenant
        self._lines[tenant].remove(sequence)
        self._waiting[tenant] -= 1

    def ordered(self, without: Set[str]) -> Iterator[Sequence]:
        """The least served tenant's sequences first."""
        tenants = [
            tenant for tenant, count in self._waiting.items() if count and tenant not in without
        ]
        for tenant in sorted(tenants, key=lambda name: (self._served[name], name)):
            yield from self._lines[tenant].ordered()

    def admit(self, sequence: Sequence) -> None:
        """The sequence runs: its tenant is present even if nothing of it waits."""
        tenant = sequence.request.tenant
        self._running[tenant] = self._running.get(tenant, 0) + 1

    def leave(self, sequence: Sequence) -> None:
        """The sequence does not run any more."""
        tenant = sequence.request.tenant
        self._running[tenant] -= 1
        assert self._running[tenant] >= 0, tenant

    def forget_absent(self) -> None:
        """Bound the tables: above TENANTS_MAX, forget absent tenants."""
        if len(self._served) <= TENANTS_MAX:
            return
        for tenant in [name for name in self._served if not self.is_here(name)]:
            for table in (self._served, self._waiting, self._running, self._lines):
                table.pop(tenant, None)

    def is_here(self, tenant: str) -> bool:
        """Whether any sequence of the tenant waits or runs."""
        return bool(self._waiting.get(tenant) or self._running.get(tenant))

    def charge(self, tenant: str, token_count: int) -> None:
        """The tenant was served so many tokens."""
        self._served[tenant] = self._served.get(tenant, 0.0) + token_count


class WaitQueue:
    """All waiting sequences with their counts. The scheduler checks the bounds before it adds."""

    def __init__(self, ranking: Ranking | None, overtake_s: float) -> None:
        """Without a ranking, the policy is `fair`."""
        self._overtake_s = overtake_s
        self.fair: FairLine | None = None
        self._line: WaitLine
        if ranking is None:
            self._line = self.fair = FairLine()
        else:
            self._line = PartedLine(ranking)
        self._arrivals = PartedLine(by_arrival)
        self._newcomers = PartedLine(by_arrival)
        """Waiting sequences that never ran."""
        self.shares = Shares()
        self.count = 0
        self.token_count = 0
        self.work_count = 0

    def newcomer_count(self, without: Set[str] = frozenset()) -> int:
        """How many wait and never ran, without those of these tenants."""
        return self._newcomers.count(without)

    def add(self, sequence: Sequence) -> None:
        """Let the sequence wait. A preempted one keeps its age."""
        self._line.add(sequence)
        self._arrivals.add(sequence)
        if not sequence.has_started:
            self._newcomers.add(sequence)
        self.shares.count(sequence, waiting=1)
        self.count += 1
        self.token_count += sequence.known_count
        self.work_count += sequence.known_max

    def remove(self, sequence: Sequence) -> None:
        """The sequence was admitted, or ended."""
        self._line.remove(sequence)
        self._arrivals.remove(sequence)
        if not sequence.has_started:
            self._newcomers.remove(sequence)
        self.shares.count(sequence, waiting=-1)
        self.count -= 1
        self.token_count -= sequence.known_count
        self.work_count -= sequence.known_max
        assert self.count >= 0, self.count

    def rank_again(self, sequence: Sequence) -> None:
        """Sort the sequence again, because its rank has changed."""
        if self.fair is None:
            self._line.remove(sequence)
            self._line.add(sequence)

    def ordered(self, now: float, without: Set[str] = frozenset()) -> Iterator[Sequence]:
        """Elders by age, then the others by policy, without those of these tenants."""
        elders = []
        for sequence in self._arrivals.ordered(without):
            if now - sequence.arrived_at <= self._overtake_s:
                break
            elders.append(sequence)
        yield from elders
        for sequence in self._line.ordered(without):
            if now - sequence.arrived_at <= self._overtake_s:
                yield sequence

    def oldest_newcomer(self, without: Set[str] = frozenset()) -> Sequence | None:
        """The oldest waiting sequence that never ran, without those of these tenants."""
        return next(self._newcomers.ordered(without), None)
