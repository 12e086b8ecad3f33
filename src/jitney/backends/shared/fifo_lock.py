"""A lock that is given in the order in which it was asked for. Any thread.

Python's own goes to whoever is quickest, which is mostly the one who has just let it go: work in
many pieces would keep it from everybody else until it is done.
"""

import threading
from collections import deque


class FifoLock:
    """One holder at a time; whoever waits longest is next."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_held = False
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout_s: float) -> bool:
        """Wait for a turn, for so long at most; whether it came."""
        with self._guard:
            if not self._is_held:
                self._is_held = True
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            if turn.acquire(timeout=timeout_s):
                return True
        except BaseException:
            if not self._withdraw(turn):
                self.release()
            raise
        # It may have come in this very moment.
        return not self._withdraw(turn)

    def release(self) -> None:
        """The turn is over; only its holder may say so."""
        with self._guard:
            assert self._is_held, "nobody holds it"
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False

    def _withdraw(self, turn: threading.Lock) -> bool:
        """Wait no longer; false when the turn has come already."""
        with self._guard:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True
