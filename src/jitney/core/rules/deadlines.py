"""Time limits of sequences: how long each may wait and take (invariant 8).

Called by the scheduler only.

Tests: tests/unit/core/test_scheduler.py.
"""

import heapq
import math
from collections.abc import Iterator

from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence, SequenceState

ENDED_KEPT = 256
"""How many deadlines of ended sequences are kept before all are removed."""


class Deadlines:
    """The time limits of all live sequences, the next one first."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._due: list[tuple[float, int, bool, Sequence]] = []
        """When, the order of the sequence, and whether the limit is only until its first slot."""

    @property
    def next_at(self) -> float | None:
        """When the next limit ends."""
        return self._due[0][0] if self._due else None

    def add(self, sequence: Sequence, now: float) -> None:
        """The sequence was accepted.

        One that another engine accepted waits since then, and one that ran there does not wait for
        its first slot. The time until its end is what is left of it. A limit of infinity is none,
        whatever the settings say.
        """
        assert sequence.state is SequenceState.WAITING, "limits begin when it is accepted"
        request, settings = sequence.request, self._settings
        wait_s, total_s = request.queue_timeout_s, request.request_timeout_s
        wait_s = settings.queue_timeout_s if wait_s is None else wait_s
        total_s = settings.request_timeout_s if total_s is None else total_s
        if wait_s is not None and wait_s < math.inf and not request.resumed:
            self._note(sequence, sequence.accepted_at + wait_s, is_until_start=True)
        if total_s is not None:
            self._note(sequence, now + total_s, is_until_start=False)

    def _note(self, sequence: Sequence, due_at: float, *, is_until_start: bool) -> None:
        assert not math.isnan(due_at), due_at
        heapq.heappush(self._due, (due_at, sequence.order, is_until_start, sequence))

    def passed(self, now: float, live_count: int) -> Iterator[Sequence]:
        """Sequences whose time is over. The caller ends each one before it takes the next."""
        assert live_count >= 0, live_count
        self._forget_ended(live_count)
        while self._due and self._due[0][0] <= now:
            _, _, is_until_start, sequence = heapq.heappop(self._due)
            is_met = is_until_start and sequence.has_started
            if sequence.state is not SequenceState.FINISHED and not is_met:
                yield sequence

    def _forget_ended(self, live_count: int) -> None:
        """Drop limits of ended sequences: the next ones now, all when there are too many."""
        due = self._due
        while due and due[0][3].state is SequenceState.FINISHED:
            heapq.heappop(due)
        if len(due) > ENDED_KEPT + 4 * live_count:
            due[:] = [each for each in due if each[3].state is not SequenceState.FINISHED]
            heapq.heapify(due)
