"""When waiting sequences may join: a `Gate` for each strategy.

`continuous` lets newcomers in at every tick, or gathers them in a window first (`Window`). The
group strategies (`Groups`) open for a group, close behind it, and open again when its last member
has ended. They exist so that what the literature says of them can be measured, and they are real:
memory, preemption and recovery work inside a group as everywhere.
"""

from dataclasses import dataclass
from typing import Protocol

from jitney.core.counters import Counters
from jitney.core.scheduler_settings import GroupAnswers, SchedulerSettings, Strategy
from jitney.core.sequence import Sequence

LATENCY_WEIGHT = 0.2
"""What the last tick counts for in the mean that `adaptive` steers by."""

GROWTH = 1.5
SHRINK = 0.75
"""An `adaptive` group has at most so many times the places of the one before while more wait, and
at most so many while ticks are slow."""


@dataclass(frozen=True, slots=True)
class Line:
    """The newcomers whom a gate decides about, and the places that are free for them.

    A newcomer has never run. Whoever ran before, and was preempted or paused, joins at any time.
    """

    count: int
    oldest: Sequence | None
    places: int


class Gate(Protocol):
    """Lets newcomers join, one by one, as the strategy allows."""

    @property
    def is_open(self) -> bool:
        """Whether newcomers may join."""
        ...

    @property
    def holds_answers(self) -> bool:
        """Whether answers are held back now, to be handed out with others."""
        ...

    def open(self, now: float, line: Line, *, drains: bool) -> None:
        """Decide who may join in this tick."""
        ...

    def may_join(self, sequence: Sequence) -> bool:
        """Whether this sequence may be admitted now."""
        ...

    def joined(self, sequence: Sequence) -> None:
        """The sequence was admitted."""
        ...

    def close(self) -> None:
        """Nobody else is here to join in this tick."""
        ...

    def left(self, sequence: Sequence) -> None:
        """The sequence ended, or was paused."""
        ...

    def observe(self, seconds: float) -> None:
        """A tick took this long."""
        ...

    def wake_at(self, line: Line) -> float | None:
        """When the gate would open without anyone else arriving."""
        ...


def make_gate(settings: SchedulerSettings, counters: Counters) -> Gate:
    """The gate of a strategy."""
    if settings.strategy is Strategy.CONTINUOUS:
        return Window(settings, counters)
    return Groups(settings, counters)


class Window:
    """Newcomers join when the oldest has waited for `wait_s`, or when enough of them are here.

    Without a wait they join at once.
    """

    def __init__(self, settings: SchedulerSettings, counters: Counters) -> None:
        assert settings.wait_s is not None, "only a group can wait until it is full"
        self._wait_s = settings.wait_s
        self._size = settings.window_size or settings.max_num_seqs
        self._size = max(self._size, settings.min_batch_size)
        self._counters = counters
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether newcomers may join."""
        return self._is_open

    @property
    def holds_answers(self) -> bool:
        """Never: each is answered when it ends."""
        return False

    def open(self, now: float, line: Line, *, drains: bool) -> None:
        """Let newcomers in when the window is over, or they are as many as have a place."""
        is_over = line.oldest is None or line.oldest.arrived_at + self._wait_s <= now
        is_enough = line.count >= min(self._size, max(line.places, 1))
        self._is_open = drains or is_over or is_enough
        if not self._is_open:
            self._counters.add("window_waits")
        elif not is_over:
            self._counters.add("windows_filled")

    def may_join(self, sequence: Sequence) -> bool:
        """Whether this sequence may be admitted now."""
        return self._is_open or sequence.has_started

    def joined(self, sequence: Sequence) -> None:
        """Nothing is kept of it."""

    def close(self) -> None:
        """Nothing to do: the next tick looks at the window again."""

    def left(self, sequence: Sequence) -> None:
        """Nothing was kept of it."""

    def observe(self, seconds: float) -> None:
        """A window does not depend on ticks."""

    def wake_at(self, line: Line) -> float | None:
        """The end of the window, while it keeps somebody out."""
        if self._is_open or line.oldest is None:
            return None
        return line.oldest.arrived_at + self._wait_s


class Groups:
    """A group departs when it is full or its oldest has waited for `wait_s`, and runs to its end.

    `static` and `dynamic` groups have as many places as may run. Those of `adaptive` follow the
    queue and the time of a tick. Fewer than `min_batch_size` depart only when the wait is over.
    """

    def __init__(self, settings: SchedulerSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._size_last = settings.max_num_seqs
        self._latency_s = 0.0
        self._places = 0
        self._members: set[Sequence] = set()

    @property
    def is_open(self) -> bool:
        """Whether there are places left in the group that departs."""
        return self._places > 0

    @property
    def holds_answers(self) -> bool:
        """Whether a group is on its way whose answers are handed out when it has arrived."""
        return bool(self._members) and self._settings.group_answers is GroupAnswers.TOGETHER

    def open(self, now: float, line: Line, *, drains: bool) -> None:
        """Start a new group if the last one has arrived and this one may depart."""
        if self._members:
            return
        self._places = 0
        if line.oldest is None:
            return
        size = self._next_size(line.count)
        least = max(size, self._settings.min_batch_size)
        if line.count >= least or drains or self._is_over(line.oldest, now):
            self._places = min(line.count, least)
            self._size_last = size
            self._counters.add("groups_departed")
        elif line.count >= size:
            self._counters.add("minimum_waits")
        elif self._settings.wait_s is None:
            self._counters.add("waits_until_full")

    def may_join(self, sequence: Sequence) -> bool:
        """Whether this sequence may be admitted now."""
        return self.is_open or sequence.has_started

    def joined(self, sequence: Sequence) -> None:
        """The sequence was admitted; one that never ran takes a place."""
        self._members.add(sequence)
        if not sequence.has_started:
            self._places -= 1

    def close(self) -> None:
        """Nobody else is here to join: the places that are left stay empty."""
        self._places = 0

    def left(self, sequence: Sequence) -> None:
        """The sequence ended or was paused; the last one of a group opens the gate."""
        self._members.discard(sequence)

    def observe(self, seconds: float) -> None:
        """A tick took this long; `adaptive` steers by it."""
        self._latency_s += LATENCY_WEIGHT * (seconds - self._latency_s)

    def wake_at(self, line: Line) -> float | None:
        """When a group would depart without anyone else arriving."""
        if self._members or line.oldest is None or self._settings.wait_s is None:
            return None
        return line.oldest.arrived_at + self._settings.wait_s

    def _is_over(self, oldest: Sequence, now: float) -> bool:
        wait_s = self._settings.wait_s
        return wait_s is not None and oldest.arrived_at + wait_s <= now

    def _next_size(self, waiting_count: int) -> int:
        """Places of the next group, which departs at once when so many wait."""
        size_max = self._settings.max_num_seqs
        if self._settings.strategy is not Strategy.ADAPTIVE:
            return size_max
        # Deep queues want large groups to drain them; slow ticks want small ones.
        last = self._size_last
        size = (last + waiting_count) // 2
        if waiting_count > last:
            size = min(size_max, waiting_count, max(last + 1, int(last * GROWTH)))
        if self._latency_s > self._settings.tick_s_target:
            size = min(size, int(last * SHRINK))
        return max(1, size)
