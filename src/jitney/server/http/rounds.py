"""Shares each round of the event loop among the connections that have sent something: `Rounds`.

A round reads only a little from a connection that has sent much. Between two rounds, streams are
served and new connections are accepted. There are two queues: for connections that begin, and for
those that go on. Each gets half of the work. Event loop.
"""

from collections.abc import Callable

from jitney.server import limits


class Rounds:
    """What is left of this round, and the callbacks of the next one, in order."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._left = limits.STEPS_PER_ROUND
        # With the bytes that each holds in memory meanwhile.
        self._first: dict[Callable[[], None], int] = {}
        self._again: dict[Callable[[], None], int] = {}
        self._held_bytes = 0
        self._ahead = 0
        """Steps by which the first queue is ahead of the second, while both have entries."""
        self._is_called = False

    @property
    def is_over(self) -> bool:
        """Whether no more may be done in this round."""
        return self._left <= 0

    def take(self, steps: int) -> None:
        """Count steps that were done. Steps beyond the end of a round count in the next."""
        self._left -= steps
        self._call()

    @property
    def is_crowded(self) -> bool:
        """Whether the waiting connections hold as much memory as they may."""
        return self._held_bytes >= limits.READS_BYTES_MAX

    def wait(self, read: Callable[[], None], *, is_begun: bool, held_bytes: int = 0) -> None:
        """Call this in the next round or a later one."""
        self.leave(read)
        (self._again if is_begun else self._first)[read] = held_bytes
        self._held_bytes += held_bytes
        self._call()

    def leave(self, read: Callable[[], None]) -> None:
        """Do not call it any more."""
        for waiting in (self._first, self._again):
            self._held_bytes -= waiting.pop(read, 0)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._begin)

    def _begin(self) -> None:
        self._is_called = False
        self._left = min(self._left, 0) + limits.STEPS_PER_ROUND
        try:
            while not self.is_over and (self._first or self._again):
                self._call_next()
        finally:
            # If one fails, the others still get their turn.
            if self._first or self._again or self._left < limits.STEPS_PER_ROUND:
                self._call()

    def _call_next(self) -> None:
        """Call one callback, from the queue that has had less."""
        if not (self._first and self._again):
            self._ahead = 0
        is_first = bool(self._first) and (self._ahead <= 0 or not self._again)
        read, left = next(iter(self._first if is_first else self._again)), self._left
        self.leave(read)
        read()
        # A turn in which nothing was read counts as well.
        steps = max(1, left - self._left)
        self._ahead += steps if is_first else -steps
