"""`LoopCalls`: calls from other threads to an event loop, which is woken once for many of them."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

_log = logging.getLogger("jitney.server")


class LoopCalls:
    """Calls to one event loop, in their order. Made on the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Callable[[], None]] = deque()
        self._is_due = False

    def call(self, function: Callable[[], None]) -> None:
        """Any thread: have the function called on the loop. To wake a loop takes a system call, and
        the engine has news for all streams at once."""
        self._calls.append(function)
        if not self._is_due:
            self._is_due = True
            # A closed loop calls nobody any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # First, so that what is added from now on wakes the loop again.
        self._is_due = False
        for _ in range(len(self._calls)):
            try:
                self._calls.popleft()()
            except Exception:
                # The others are of other callers.
                _log.exception("A call to the event loop failed")
