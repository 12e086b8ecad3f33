"""A lock that threads get in the order in which they asked for it. Any thread.

Python's own lock goes to the quickest thread, which is mostly the one that has just released it. A
thread with many pieces of work would keep it from all others.
"""

import threading
from collections import deque


class FifoLock:
    """One holder at a time; the thread that waits longest is next."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_held = False
        self._waiting: deque[threading.Lock] = deque()
        self.change_count = 0
        """Beginnings and ends of turns; odd while somebody has a turn. Any thread."""

    def acquire(self, timeout_s: float) -> bool:
        """Wait for a turn, for at most `timeout_s`; whether it came."""
        with self._guard:
            if not self._is_held:
                self._is_held = True
                self.change_count += 1
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
        # The turn may have come at this moment.
        return not self._withdraw(turn)

    def release(self) -> None:
        """End the turn. Only its holder may call this."""
        with self._guard:
            assert self._is_held, "Nobody holds the lock"
            self.change_count += 1
            if self._waiting:
                self.change_count += 1
                self._waiting.popleft().release()
            else:
                self._is_held = False

    def _withdraw(self, turn: threading.Lock) -> bool:
        """Stop waiting; false when the turn has already come."""
        with self._guard:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True
