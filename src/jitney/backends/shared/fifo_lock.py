"""A lock that threads get in the order in which they asked for it. Any thread.

Python's own lock goes to the quickest thread, which is mostly the one that has just released it. A
thread with many pieces of work would keep it from all others.
"""

import threading
from collections import deque


class FifoLock:
    """One holder at a time; the thread that waits longest is next."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._queue: deque[object] = deque()
        """A ticket for each thread. The first thread has the turn, and the others wait."""
        self.change_count = 0
        """Beginnings and ends of turns; odd while somebody has a turn. Any thread."""

    def acquire(self, timeout_s: float) -> bool:
        """Wait for a turn, for at most `timeout_s`; whether it came."""
        ticket, is_next = object(), False
        with self._condition:
            self._queue.append(ticket)
            try:
                is_next = self._condition.wait_for(lambda: self._queue[0] is ticket, timeout_s)
                self.change_count += is_next
            finally:
                if not is_next:
                    self._queue.remove(ticket)
                    self._condition.notify_all()
        return is_next

    def release(self) -> None:
        """End the turn. Only its holder may call this."""
        with self._condition:
            assert self.change_count % 2, "Nobody holds the lock"
            self.change_count += 1
            self._queue.popleft()
            self._condition.notify_all()
