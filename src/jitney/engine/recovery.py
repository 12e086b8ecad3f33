"""Brings a lost backend back, with pauses between attempts that fail.

Called by the tick, on the engine thread. Knows no scheduler: it is told that the backend was lost
and says whether batches may be sent again, when to try next, and when to give up.
"""

from jitney.core import limits
from jitney.core.backend import Backend

PAUSE_S = 0.5
PAUSE_S_MAX = 4.0
"""After the first failed attempt; doubles with each further one. A machine that killed the
backend for want of memory gets time to have some again."""


class Recovery:
    """The state of a backend as far as starting it again goes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.lost_at: float | None = None
        """When the backend was lost; None while it takes batches."""
        self.is_hopeless = False
        """Whether attempts failed so often, and over so long, that there will be no other."""
        self.failed_count = 0
        """Attempts that failed in a row."""
        self.retry_at: float | None = None
        """The moment of the next attempt, while the backend is lost and pausing."""

    def lose(self, now: float) -> None:
        """The backend failed or crashed: its memory is worth nothing."""
        self.lost_at = now

    def attempt(self, now: float) -> Exception | None:
        """Reset a lost backend if the pause is over; the error of an attempt that failed.

        Any exception counts: a backend that cannot be reset is gone whatever it says.
        """
        assert not self.is_hopeless, "gave up already"
        if self.lost_at is None or (self.retry_at is not None and now < self.retry_at):
            return None
        try:
            self._backend.reset()
        except Exception as error:
            self.retry_at = now + min(PAUSE_S * 2**self.failed_count, PAUSE_S_MAX)
            self.failed_count += 1
            was_long = now - self.lost_at >= limits.GIVE_UP_S
            self.is_hopeless = was_long and self.failed_count >= limits.GIVE_UP_ATTEMPTS
            return error
        self.lost_at = None
        self.retry_at = None
        self.failed_count = 0
        return None

    @property
    def is_ready(self) -> bool:
        """Whether a batch may be sent."""
        return self.lost_at is None
