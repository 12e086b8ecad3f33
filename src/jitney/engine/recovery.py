"""Restarts a lost backend, with pauses between failed attempts.

Called by the tick, on the engine thread. It does not know the scheduler. It says whether batches
may be sent, when to try next, and when to give up.
"""

from jitney.core import limits
from jitney.core.backend import Backend

PAUSE_S = 0.5
PAUSE_S_MAX = 4.0
"""The pause after the first failed attempt, and the longest one. It doubles with each attempt, and
counts from the beginning of the attempt. A machine that killed the backend for lack of memory gets
time to recover."""


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
