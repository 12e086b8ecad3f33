"""When waiting sequences may join: a `Gate` for each strategy.

`continuous` lets newcomers in at every tick, or gathers them in a window first (`Window`). The
group strategies (`Groups`) let a group in and then nobody, until the last member of the group has
ended. They exist so that claims of the literature can be measured. Memory, preemption and recovery
work inside a group as everywhere.
"""

from dataclasses import dataclass
from typing import Protocol

from jitney.core.counters import Counters
from jitney.core.scheduler_settings import GroupAnswers, SchedulerSettings, Strategy
from jitney.core.sequence import Sequence

LATENCY_WEIGHT = 0.2
"""The weight of the last tick in the mean time of a tick that `adaptive` uses."""

GROWTH = 1.5
SHRINK = 0.75
"""The largest factor from one `adaptive` group to the next: GROWTH while more wait, SHRINK while
ticks are slow."""


@dataclass(frozen=True, slots=True)
class Newcomers:
    """The waiting sequences that a gate decides about, and how many sequences more may run.

    A newcomer has never run. A sequence that was preempted or paused may join at any time, and a
    background one too: it is no part of a group.
    """

    count: int
    oldest: Sequence | None
    room: int

    def __post_init__(self) -> None:
        assert (self.count > 0) == (self.oldest is not None), self
        assert self.room >= 0, self


class Gate(Protocol):
    """Lets newcomers join, one by one, as the strategy allows.

    Methods that do nothing here are for strategies that need them.
    """

    @property
    def is_open(self) -> bool:
        """Whether newcomers may join."""
        ...

    @property
    def holds_answers(self) -> bool:
        """Whether answers are held back now, to be given out with others."""
        return False

    def open(self, now: float, newcomers: Newcomers, *, starts_now: bool) -> None:
        """Decide which newcomers may join in this tick."""
        ...

    def wake_at(self, newcomers: Newcomers) -> float | None:
        """When the gate will open if nothing else arrives."""
        ...

    def may_join(self, sequence: Sequence) -> bool:
        """Whether this sequence may be admitted now."""
        return self.is_open or sequence.has_started or sequence.is_background

    def joined(self, sequence: Sequence) -> None:
        """The sequence was admitted."""
        return

    def close(self) -> None:
        """No other sequence can join in this tick."""
        return

    def left(self, sequence: Sequence) -> None:
        """The sequence ended, or was paused."""
        return

    def observe(self, seconds: float) -> None:
        """A tick took this long."""
        return


def make_gate(settings: SchedulerSettings, counters: Counters) -> Gate:
    """The gate of a strategy."""
    if settings.strategy is Strategy.CONTINUOUS:
        return Window(settings, counters)
    return Groups(settings, counters)


class Window(Gate):
    """Newcomers join when the oldest has waited `wait_s`, or when there are enough of them.

    With `wait_s` 0 they join at once.
    """

    def __init__(self, settings: SchedulerSettings, counters: Counters) -> None:
        assert settings.wait_s is not None, "only a group can wait until it is full"
        self._wait_s = settings.wait_s
        self._size = settings.window_size or settings.max_num_seqs
        self._size = max(self._size, settings.min_batch_size)
        assert self._size >= 1, self._size
        self._counters = counters
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether newcomers may join."""
        return self._is_open

    def open(self, now: float, newcomers: Newcomers, *, starts_now: bool) -> None:
        """Let newcomers in when the window is over, or when there are enough of them."""
        oldest = newcomers.oldest
        is_over = oldest is None or oldest.accepted_at + self._wait_s <= now
        is_enough = newcomers.count >= min(self._size, max(newcomers.room, 1))
        self._is_open = starts_now or is_over or is_enough
        if not self._is_open:
            self._counters["window_waits"] += 1
        elif not is_over:
            self._counters["windows_filled"] += 1

    def wake_at(self, newcomers: Newcomers) -> float | None:
        """The end of the window, while a newcomer waits for it."""
        if self._is_open or newcomers.oldest is None:
            return None
        return newcomers.oldest.accepted_at + self._wait_s


class Groups(Gate):
    """A group starts when it is full or its oldest has waited `wait_s`, and runs to its end.

    `static` and `dynamic` groups have up to `max_num_seqs` members. The size of `adaptive` groups
    depends on the queue and the time of a tick. A group smaller than `min_batch_size` starts only
    when the wait is over.
    """

    def __init__(self, settings: SchedulerSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._size_last = settings.max_num_seqs
        self._size_next: int | None = None
        """The size of a group that may start, until its first member joins."""
        self._latency_s = 0.0
        self._room = 0
        self._members: set[Sequence] = set()

    @property
    def is_open(self) -> bool:
        """Whether the group that starts has room left."""
        assert self._room >= 0, self._room
        return self._room > 0

    @property
    def holds_answers(self) -> bool:
        """Whether a group runs whose answers are given out when all have ended."""
        return bool(self._members) and self._settings.group_answers is GroupAnswers.TOGETHER

    def open(self, now: float, newcomers: Newcomers, *, starts_now: bool) -> None:
        """Start a new group if the last one has ended and this one may start."""
        if self._members:
            return
        self._room = 0
        if newcomers.oldest is None:
            return
        size = self._next_size(newcomers.count)
        least = max(size, self._settings.min_batch_size)
        if newcomers.count >= least or starts_now or self._is_over(newcomers.oldest, now):
            self._room = min(newcomers.count, least)
            assert self._room >= 1, "a group has members"
            self._size_next = size
        elif newcomers.count >= size:
            self._counters["minimum_waits"] += 1
        elif self._settings.wait_s is None:
            self._counters["waits_until_full"] += 1

    def joined(self, sequence: Sequence) -> None:
        """The sequence was admitted. A newcomer takes room."""
        if sequence.is_background:
            return
        self._members.add(sequence)
        if not sequence.has_started:
            self._room -= 1
            if self._size_next is not None:
                self._size_last, self._size_next = self._size_next, None
                self._counters["groups_departed"] += 1

    def close(self) -> None:
        """No other sequence can join: the room that is left stays empty."""
        self._room = 0

    def left(self, sequence: Sequence) -> None:
        """The sequence ended or was paused. After the last one the next group may start."""
        self._members.discard(sequence)

    def observe(self, seconds: float) -> None:
        """A tick took this long. `adaptive` uses it."""
        assert seconds >= 0.0, seconds
        self._latency_s += LATENCY_WEIGHT * (seconds - self._latency_s)

    def wake_at(self, newcomers: Newcomers) -> float | None:
        """When a group will start if nothing else arrives."""
        if self._members or newcomers.oldest is None or self._settings.wait_s is None:
            return None
        return newcomers.oldest.accepted_at + self._settings.wait_s

    def _is_over(self, oldest: Sequence, now: float) -> bool:
        wait_s = self._settings.wait_s
        return wait_s is not None and oldest.accepted_at + wait_s <= now

    def _next_size(self, waiting_count: int) -> int:
        """The room of the next group. It starts at once when so many wait."""
        size_max = self._settings.max_num_seqs
        if self._settings.strategy is not Strategy.ADAPTIVE:
            return size_max
        assert waiting_count >= 1, "a group has members"
        # A long queue needs large groups; slow ticks need small ones.
        last = self._size_last
        size = (last + waiting_count) // 2
        if waiting_count > last:
            size = min(size_max, waiting_count, max(last + 1, int(last * GROWTH)))
        if self._latency_s > self._settings.stall_s_target:
            size = min(size, int(last * SHRINK))
        return max(1, size)
