"""`Fetcher`: asks the backend's disk for prefixes, on a thread of its own.

The engine thread asks and does not wait. The thread lives while there is something to ask, so
nobody has to end it; a disk that hangs keeps it, and only it.

Tests: tests/unit/engine/test_fetcher.py.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from jitney.core.backend import Fetch, Fetched, StoringBackend

_log = logging.getLogger("jitney.engine")


class Fetcher:
    """Fetches from one backend, one after the other."""

    def __init__(self, backend: StoringBackend, answer: Callable[[Fetched], None]) -> None:
        self._backend = backend
        self._answer = answer
        self._lock = threading.Lock()
        self._asked: deque[Fetch] = deque()
        self._is_running = False

    def ask(self, asked: Fetch) -> None:
        """Every fetch is answered: also one that fails, unless the disk hangs."""
        with self._lock:
            self._asked.append(asked)
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="jitney-fetcher", daemon=True).start()
        except RuntimeError:  # there are no more threads
            with self._lock:
                self._is_running = False
                self._asked.remove(asked)
            self._answer(Fetched(asked.ticket))

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._asked:
                    self._is_running = False
                    return
                asked = self._asked.popleft()
            self._answer(self._fetched(asked))

    def _fetched(self, asked: Fetch) -> Fetched:
        try:
            return self._backend.fetch(asked)
        except Exception as error:
            # A backend that is lost has no prefix, and whoever waits computes its own.
            _log.info("A prefix could not be fetched: %s", error)
            return Fetched(asked.ticket)
