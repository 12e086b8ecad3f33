"""When waiting sequences may join: `Gate`, one for each strategy.

`continuous` has no gate. The group strategies open for a group, close behind it, and open again
when its last member has ended; its answers are handed out together. They exist so that what the
literature says of them can be measured, and they are real: memory, preemption and recovery work
inside a group as everywhere.
"""

from collections.abc import Set

from jitney.core.counters import Counters
from jitney.core.sequence import Sequence
from jitney.core.settings import SchedulerSettings, Strategy

LATENCY_WEIGHT = 0.2
"""What the last tick counts for in the mean that `adaptive` steers by."""

GROWTH = 1.5
SHRINK = 0.75
"""An `adaptive` group has at most so many times the places of the one before while more wait, and
at most so many while ticks are slow."""


class Gate:
    """Lets sequences join, one by one, as the strategy allows."""

    def __init__(self, settings: SchedulerSettings, counters: Counters) -> None:
        self._counters = counters
        self._strategy = settings.strategy
        self._size_max = settings.sequences_max
        self._wait_s = settings.wait_s or 0.0
        self._tick_s_target = settings.tick_s_target
        self._size_last = settings.sequences_max
        self._latency_s = 0.0
        self._places = 0
        self._members: set[Sequence] = set()

    @property
    def is_grouped(self) -> bool:
        """Whether sequences travel in groups at all."""
        return self._strategy is not Strategy.CONTINUOUS

    @property
    def holds_answers(self) -> bool:
        """Whether a group is on its way: its answers are handed out when it has arrived."""
        return bool(self._members)

    @property
    def is_open(self) -> bool:
        """Whether anybody may join."""
        return not self.is_grouped or self._places > 0

    @property
    def members(self) -> Set[Sequence]:
        """The group that is on its way."""
        return self._members

    def open(self, now: float, waiting_count: int, oldest: Sequence | None, drains: bool) -> None:
        """Start a new group if the last one has arrived and this one may depart."""
        if not self.is_grouped or self._members:
            return
        self._places = 0
        if oldest is None:
            return
        size = self._group_size(waiting_count)
        if waiting_count >= size or drains or oldest.arrived_at + self._wait_s <= now:
            self._places = min(waiting_count, size)
            self._size_last = size
            self._counters.add("groups_departed")

    def may_join(self, sequence: Sequence) -> bool:
        """Whether this sequence may be admitted now; a member may always come back."""
        return self.is_open or sequence in self._members

    def joined(self, sequence: Sequence) -> None:
        """The sequence was admitted."""
        if self.is_grouped and sequence not in self._members:
            self._members.add(sequence)
            self._places -= 1

    def close(self) -> None:
        """Nobody else is here to join: the places that are left stay empty."""
        self._places = 0

    def ended(self, sequence: Sequence) -> None:
        """The sequence ended; the last one of a group opens the gate."""
        self._members.discard(sequence)

    def observe(self, seconds: float) -> None:
        """A tick took this long; `adaptive` steers by it."""
        self._latency_s += LATENCY_WEIGHT * (seconds - self._latency_s)

    def wake_at(self, oldest: Sequence | None) -> float | None:
        """When a group would depart without anyone else arriving."""
        if not self.is_grouped or self._members or oldest is None:
            return None
        return oldest.arrived_at + self._wait_s

    def _group_size(self, waiting_count: int) -> int:
        """Places of the next group, which departs at once when so many wait."""
        if self._strategy is not Strategy.ADAPTIVE:
            return self._size_max
        # Deep queues want large groups to drain them; slow ticks want small ones.
        last = self._size_last
        size = (last + waiting_count) // 2
        if waiting_count > last:
            size = min(self._size_max, waiting_count, max(last + 1, int(last * GROWTH)))
        if self._latency_s > self._tick_s_target:
            size = min(size, int(last * SHRINK))
        return max(1, size)
