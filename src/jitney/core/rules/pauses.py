"""Sequences that their callers paused: since when and until when.

A paused sequence is not in the queue, but keeps its age. All its pauses together last at most
PAUSE_S_MAX. Only a part of the queue may be paused, so that nobody can fill the engine
with requests that do nothing. Called by the parts of the scheduler only.

Tests: tests/unit/core/test_steering.py.
"""

from enum import StrEnum

from jitney.core import limits
from jitney.core.counters import Counters
from jitney.core.rules.gate import Gate
from jitney.core.rules.queue import WaitQueue
from jitney.core.sequence import Sequence, SequenceState


class PauseOutcome(StrEnum):
    """What became of the wish to pause a request."""

    PAUSED = "paused"
    WAS_PAUSED = "was paused before"
    TOO_MANY = "too many are paused"
    """In all, or of its tenant."""
    TOO_LONG = "was paused as long as it may be"
    NOT_NOW = "cannot be paused now"
    """Its engine drains, or has not taken it yet."""
    REPLACED = "its caller has thought otherwise"
    """A later pause or resume came before the engine looked."""
    ENDED = "has ended"


class Pauses(dict[Sequence, float]):
    """The paused sequences, and when each pause began. Only its own methods change it.

    A running one goes on until its batch has returned.
    """

    def __init__(self, queue: WaitQueue, gate: Gate, counters: Counters, count_max: int) -> None:
        super().__init__()
        self._queue = queue
        self._gate = gate
        self._counters = counters
        self._count_max = count_max

    @property
    def end_at(self) -> float:
        """When the first of these pauses ends by itself; there is one."""
        return min(map(self._end_of, self))

    def begin(self, sequences: list[Sequence], now: float) -> PauseOutcome:
        """Pause all sequences of a request, or none of them."""
        assert len({each.request.id for each in sequences}) == 1, "sequences of one request"
        new = [each for each in sequences if each not in self]
        if not new:
            return PauseOutcome.WAS_PAUSED
        if any(each.history.paused_s >= limits.PAUSE_S_MAX for each in new):
            self._counters["pauses_refused"] += 1
            return PauseOutcome.TOO_LONG
        has_room = len(self) + len(new) <= self._count_max
        if not has_room or not self._queue.shares.may_pause(new):
            self._counters["pauses_refused"] += 1
            return PauseOutcome.TOO_MANY
        for sequence in new:
            assert sequence.state is not SequenceState.FINISHED, "what has ended cannot pause"
            self[sequence] = now
            self._queue.shares.count(sequence, paused=1)
            self._counters["paused"] += 1
            if sequence.state is SequenceState.WAITING:
                self.leave_queue(sequence)
        return PauseOutcome.PAUSED

    def end(self, sequence: Sequence, now: float) -> None:
        """Let a paused sequence wait for its turn again; ignore any other one."""
        begun_at = self.get(sequence)
        if begun_at is None:
            return
        sequence.history.paused_s += max(0.0, now - begun_at)
        self._counters["resumed"] += 1
        self.forget(sequence)
        if sequence.state is SequenceState.WAITING:
            self._queue.add(sequence)

    def end_due(self, now: float) -> None:
        """Resume sequences whose pauses reached the limit."""
        for sequence in [each for each in self if self._end_of(each) <= now]:
            self._counters["pauses_ended"] += 1
            self.end(sequence, now)

    def end_all(self, now: float) -> None:
        """Resume all."""
        for sequence in list(self):
            self.end(sequence, now)
        assert not self, "every pause has ended"

    def leave_queue(self, sequence: Sequence) -> None:
        """A paused sequence leaves the queue, and no group waits for it."""
        assert sequence.state is SequenceState.WAITING, "only what waits is in the queue"
        self._queue.remove(sequence)
        self._gate.left(sequence)

    def forget(self, sequence: Sequence) -> None:
        """The sequence is not paused any more, or has ended."""
        del self[sequence]
        self._queue.shares.count(sequence, paused=-1)

    def _end_of(self, sequence: Sequence) -> float:
        """When its pause ends at the latest."""
        return self[sequence] + (limits.PAUSE_S_MAX - sequence.history.paused_s)
