"""When waiting sequences may join: a `Gate` for each strategy.

`continuous` lets newcomers in at every tick, or gathers them in a window first (`Window`). The
group strategies (`Groups`) let a group in and then nobody, until the last member of the group has
ended. They exist so that claims of the literature can be measured. Memory, preemption and recovery
work inside a group as everywhere.
"""

from dataclasses import dataclass
from typing import Protocol

from jitney.core.counters import Counters
from jitney.core.rules.cost import Fit
from jitney.core.scheduler_settings import GroupAnswers, SchedulerSettings, Strategy
from jitney.core.sequence import Sequence

RATE_SHARE = 0.9
"""An `adaptive` group is smaller than it could be only if it decodes at this share of the rate of a
full group, or more."""


@dataclass(frozen=True, slots=True)
class Newcomers:
    """The waiting sequences that a gate decides about, and how many sequences more may run.

    A newcomer has never run. The oldest is the one that was submitted first. A sequence that ran
    before may join at any time, and a background one too: it is no part of a group. `last_order` is
    the number of the last submission.
    """

    count: int
    oldest: Sequence | None
    room: int
    last_order: int

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

    def holds_answers(self, newcomers: Newcomers) -> bool:
        """Whether answers are held back now, to be given out with others."""
        return False

    def open(self, now: float, newcomers: Newcomers, *, starts_now: bool) -> None:
        """Decide which newcomers may join in this tick."""

    def wake_at(self, newcomers: Newcomers) -> float | None:
        """When the gate will open if nothing else arrives."""

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

    def observe(self, fit: Fit | None) -> None:
        """The time of a tick, as known after another one."""
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
        self._size = settings.enough(settings.max_num_seqs)
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
    """A group starts when it is full or its oldest has waited `wait_s`, and runs to its end: until
    its last member has ended, also one that had to wait for its prefix or for memory.

    `static` and `dynamic` groups have up to `max_num_seqs` members. So do `adaptive` ones, unless
    ticks of so many are slow. With a `min_batch_size` above 1, so many start a group.
    """

    def __init__(self, settings: SchedulerSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._fit: Fit | None = None
        self._room = 0
        self._last_order = 0
        """The number of the last submission when the group started: who came later is not of it."""
        self._is_counted = True
        """Whether the group that may start has had its first member."""
        self._members: set[Sequence] = set()

    @property
    def is_open(self) -> bool:
        """Whether the group that starts has room left."""
        assert self._room >= 0, self._room
        return self._room > 0

    def holds_answers(self, newcomers: Newcomers) -> bool:
        """Whether a group is left whose answers are given out when all have ended."""
        is_together = self._settings.group_answers is GroupAnswers.TOGETHER
        return is_together and (bool(self._members) or self._awaits_member(newcomers))

    def may_join(self, sequence: Sequence) -> bool:
        """Whether this sequence may be admitted now: a newcomer, if it was here at the start.

        A member may have to wait for its prefix or for memory. Nobody else takes its place.
        """
        if sequence.has_started or sequence.is_background:
            return True
        return self.is_open and sequence.order <= self._last_order

    def open(self, now: float, newcomers: Newcomers, *, starts_now: bool) -> None:
        """Start a new group if the last one has ended and this one may start."""
        if self._members or self._awaits_member(newcomers):
            return
        self._room = 0
        if newcomers.oldest is None:
            return
        size = self._size()
        enough = self._settings.enough(size)
        if newcomers.count >= enough or starts_now or self._is_over(newcomers.oldest, now):
            self._room = min(newcomers.count, max(size, enough))
            assert self._room >= 1, "a group has members"
            self._last_order = newcomers.last_order
            self._is_counted = False
        elif self._settings.wait_s is None:
            self._counters["waits_until_full"] += 1

    def joined(self, sequence: Sequence) -> None:
        """The sequence was admitted. A newcomer takes room."""
        if sequence.is_background:
            return
        self._members.add(sequence)
        if not sequence.has_started:
            self._room -= 1
            self._counters["groups_departed"] += not self._is_counted
            self._is_counted = True

    def close(self) -> None:
        """No other sequence can join: the room that is left stays empty."""
        self._room = 0

    def left(self, sequence: Sequence) -> None:
        """The sequence ended or was paused."""
        self._members.discard(sequence)

    def observe(self, fit: Fit | None) -> None:
        """The time of a tick, as known now. `adaptive` uses it."""
        self._fit = fit

    def wake_at(self, newcomers: Newcomers) -> float | None:
        """When a group will start if nothing else arrives."""
        if self._members or newcomers.oldest is None or self._settings.wait_s is None:
            return None
        return newcomers.oldest.accepted_at + self._settings.wait_s

    def _awaits_member(self, newcomers: Newcomers) -> bool:
        """Whether one that was here when the group started waits for its prefix or for memory."""
        has_started = self._room > 0 and self._is_counted
        oldest = newcomers.oldest
        return has_started and oldest is not None and oldest.order <= self._last_order

    def _is_over(self, oldest: Sequence, now: float) -> bool:
        wait_s = self._settings.wait_s
        return wait_s is not None and oldest.accepted_at + wait_s <= now

    def _size(self) -> int:
        """The most members of the next group."""
        size = self._settings.max_num_seqs
        if self._settings.strategy is not Strategy.ADAPTIVE or self._fit is None:
            return size
        return size_within(self._settings.stall_s_target, size, self._fit)


def size_within(seconds: float, size_max: int, fit: Fit) -> int:
    """The most sequences, up to `size_max`, whose decodes take no longer than so many seconds.

    Half the time of `size_max` will do where that is more. If such a group decodes much slower in
    all, it is `size_max`: where one sequence alone is slow, small groups only make others wait.
    """
    assert size_max >= 1, size_max
    full_s = fit.seconds(size_max)
    if full_s <= seconds or fit.sequence_s is None or fit.sequence_s <= 0.0:
        return size_max
    size = int((max(seconds, full_s / 2) - fit.fixed_s) / fit.sequence_s)
    if size < 1 or size * full_s < RATE_SHARE * size_max * fit.seconds(size):
        return size_max
    return min(size, size_max)
