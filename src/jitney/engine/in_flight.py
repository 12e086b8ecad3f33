"""The backend as the tick sees it: its batches in flight (`InFlight`) and restarts (`Recovery`).

Called by the tick, on the engine thread. Batches whose outcome was not yet applied are in flight,
the oldest first: one at a time, or two if the backend is a `QueueingBackend`, which computes in
another process or on a GPU. Then the backend has the second batch when it finishes the first, and
does not wait while the engine applies an outcome and plans. The second batch is sent late, so that
requests that arrive meanwhile can be part of it. It is sent only if the time of the first is known.

Recovery restarts a lost backend, with pauses between failed attempts. It does not know the
scheduler. It says whether batches may be sent, when to try next, and when to give up.
"""

import logging
from collections import deque
from dataclasses import dataclass

from jitney.core import limits
from jitney.core.backend import Backend, QueueingBackend
from jitney.core.batch import Outcome
from jitney.core.scheduler import PlannedBatch
from jitney.core.sequence import Sequence
from jitney.engine.clock import Clock
from jitney.errors import BackendCrashed, BackendFailed

LEAD_PART = 0.15
LEAD_S_MIN = 0.002
"""How long before the end of the first batch the second is planned: a share of the first's time,
and a minimum. A pass may be faster than the last one, and planning and sending take time."""

PLANNING_FACTOR = 1.5
PLANNING_FADE = 0.9
"""Planning and sending may take this many times as long as they took lately. With hundreds of
sequences that is more than the share above; the longest time fades with every batch. Where a device
says how long it waited for a batch that was sent ahead, what happens on the way counts too."""

LIKE_PART = 0.25
"""How much the size of a batch may differ from the last one, to estimate its time from that."""

PAUSE_S = 0.5
PAUSE_S_MAX = 4.0
"""The pause after the first failed attempt, and the longest one. It doubles with each attempt, and
counts from the beginning of the attempt. A machine that killed the backend for lack of memory gets
time to recover."""


@dataclass(slots=True)
class SentBatch:
    """One batch that was sent, and the error if sending failed."""

    planned: PlannedBatch
    sent_at: float
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LostBatch:
    """Why there is no outcome, and those who may be why; nobody if the backend never got it."""

    error: Exception
    sequences: tuple[Sequence, ...] = ()


class InFlight:
    """The batches in flight of one backend."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._queueing = backend if isinstance(backend, QueueingBackend) else None
        self._sent: deque[SentBatch] = deque()
        self._last_tokens = 0
        self._last_s = 0.0
        self._planning_s = 0.0
        self._returned_at = 0.0

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, planned: PlannedBatch, now: float) -> None:
        """Send a batch that was planned from `now` on. An error is kept until its outcome is asked
        for."""
        sent = SentBatch(planned, now)
        self._sent.append(sent)
        if self._queueing is not None:
            try:
                self._queueing.send(planned.batch)
            except Exception as error:
                sent.error = error
        if len(self._sent) > 1:
            planning_s = self._clock.now() - now
            self._planning_s = max(planning_s, PLANNING_FADE * self._planning_s)

    @property
    def begun_at(self) -> float:
        """When the oldest began: when it was sent, or when the one before it ended."""
        return max(self._sent[0].sent_at, self._returned_at)

    def spare_s(self, now: float) -> float | None:
        """How long to wait for the batch in flight before another is sent; None: send none."""
        if self._queueing is None or len(self._sent) != 1 or self._sent[0].error is not None:
            return None
        token_count = self._sent[0].planned.token_count
        if abs(token_count - self._last_tokens) > LIKE_PART * token_count:
            return None
        lead_s = max(LEAD_PART * self._last_s, LEAD_S_MIN, PLANNING_FACTOR * self._planning_s)
        return max(0.0, self._last_s - lead_s - (now - self.begun_at))

    def receive(self, limit_s: float | None = None) -> Outcome | LostBatch | None:
        """The result of the oldest; None if it does not come within the limit.

        It stays the oldest until `pop_oldest`.
        """
        planned = self._sent[0].planned
        try:
            outcome = self._outcome(self._sent[0], limit_s)
        except Exception as error:
            # After any error of a backend, the sequences can be resumed.
            is_unseen = isinstance(error, BackendCrashed) and not error.was_reached
            return LostBatch(error, () if is_unseen else planned.implicated)
        if outcome is not None:
            self._last_tokens, self._last_s = planned.token_count, outcome.seconds
            self._note_idle(self._sent[0].sent_at, outcome)
        return outcome

    def pop_oldest(self, now: float) -> PlannedBatch:
        """Remove and return the oldest: its outcome is applied now, and the next one begins."""
        self._returned_at = now
        return self._sent.popleft().planned

    def clear(self) -> None:
        """Forget all batches: the backend is lost, and will be reset before it is used."""
        self._sent.clear()
        self._last_tokens = 0

    def _note_idle(self, sent_at: float, outcome: Outcome) -> None:
        """Plan earlier if the device had to wait for a batch that was planned ahead."""
        ahead_s = self._returned_at - sent_at
        if outcome.idle_s > 0 and ahead_s > 0:
            late_s = min(ahead_s + outcome.idle_s, outcome.seconds)
            self._planning_s = max(self._planning_s, late_s)

    def _outcome(self, sent: SentBatch, limit_s: float | None) -> Outcome | None:
        if sent.error is not None:
            raise sent.error
        batch = sent.planned.batch
        if self._queueing is None:
            outcome: Outcome | None = self._backend.execute(batch)
        else:
            outcome = self._queueing.receive(limit_s)
        if outcome is None:
            return None
        if outcome.number != batch.number or len(outcome.tokens) != len(sent.planned.sequences):
            raise BackendFailed(
                f"The backend answered batch {batch.number} with the outcome of another batch."
            )
        return outcome


class Recovery:
    """Whether a backend is lost, and the attempts to restart it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.lost_at: float | None = None
        """When the backend was lost; None while it works."""
        self.has_given_up = False
        """Whether attempts failed so often, and for so long, that there will be no more."""
        self.failed_count = 0
        """Attempts that failed in a row."""
        self.retry_at: float | None = None
        """The time of the next attempt; None without a failed one."""

    def lose(self, now: float) -> None:
        """The backend failed or crashed: its memory is lost."""
        self.lost_at = now

    def attempt(self, now: float) -> Exception | None:
        """Reset a lost backend if the pause is over. Returns the error of a failed attempt.

        Any exception counts as a failed attempt.
        """
        assert not self.has_given_up, "gave up already"
        if self.lost_at is None or (self.retry_at is not None and now < self.retry_at):
            return None
        try:
            self._backend.reset()
        except Exception as error:
            self.retry_at = now + min(PAUSE_S * 2**self.failed_count, PAUSE_S_MAX)
            self.failed_count += 1
            was_long = now - self.lost_at >= limits.GIVE_UP_S
            self.has_given_up = was_long and self.failed_count >= limits.GIVE_UP_ATTEMPTS
            return error
        self.lost_at = None
        self.retry_at = None
        self.failed_count = 0
        return None

    @property
    def is_ready(self) -> bool:
        """Whether a batch may be sent."""
        return self.lost_at is None


def level_of(error: Exception, level: int) -> int:
    """The log level of a failure. A failure that we wanted is only for debugging."""
    is_wanted = isinstance(error, BackendCrashed) and error.is_wanted
    return logging.DEBUG if is_wanted else level


def sentence_of(error: BaseException) -> str:
    """What the error says, or its name."""
    return str(error) or type(error).__name__
