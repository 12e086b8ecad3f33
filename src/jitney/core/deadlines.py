"""Time limits of sequences: how long each may wait and take (invariant 8).

Called by the scheduler only.

Tests: tests/unit/core/test_scheduler.py.
"""

import heapq
from collections.abc import Iterator

from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence, SequenceState

ENDED_KEPT = 256
"""How many deadlines of ended sequences are kept before all are removed."""


class Deadlines:
    """The time limits of all live sequences, the next one first."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._due: list[tuple[float, int, Sequence]] = []

    @property
    def next_at(self) -> float | None:
        """When the next limit ends."""
        return self._due[0][0] if self._due else None

    def add(self, sequence: Sequence, now: float) -> None:
        """The sequence was accepted."""
        for limit_s in self._limits_s(sequence):
            if limit_s is not None:
                heapq.heappush(self._due, (now + limit_s, sequence.order, sequence))

    def passed(self, now: float, live_count: int) -> Iterator[Sequence]:
        """Sequences whose time is over. The caller ends each one before it takes the next."""
        self._forget_ended(live_count)
        while self._due and self._due[0][0] <= now:
            sequence = heapq.heappop(self._due)[2]
            if sequence.state is not SequenceState.FINISHED and self._is_over(sequence, now):
                yield sequence

    def _is_over(self, sequence: Sequence, now: float) -> bool:
        wait_s, total_s = self._limits_s(sequence)
        # The same sums as in `add`: a difference could be rounded differently.
        if total_s is not None and sequence.arrived_at + total_s <= now:
            return True
        waits = not sequence.has_started
        return waits and wait_s is not None and sequence.arrived_at + wait_s <= now

    def _limits_s(self, sequence: Sequence) -> tuple[float | None, float | None]:
        """The limits until its first slot and until its end."""
        request, settings = sequence.request, self._settings
        wait_s = (
            settings.queue_timeout_s if request.queue_timeout_s is None else request.queue_timeout_s
        )
        total_s = (
            settings.request_timeout_s
            if request.request_timeout_s is None
            else request.request_timeout_s
        )
        return wait_s, total_s

    def _forget_ended(self, live_count: int) -> None:
        """Drop limits of ended sequences: the next ones now, all when they are the majority."""
        due = self._due
        while due and due[0][2].state is SequenceState.FINISHED:
            heapq.heappop(due)
        if len(due) > ENDED_KEPT + 4 * live_count:
            due[:] = [each for each in due if each[2].state is not SequenceState.FINISHED]
            heapq.heapify(due)
