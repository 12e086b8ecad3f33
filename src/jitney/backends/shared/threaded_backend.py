"""`ThreadedBackend`: runs a backend of this process on a thread of its own.

While the library computes, it lets other threads run. So the engine can apply one outcome and plan
the batch after the next while a batch runs, as it does with a backend in another process. Batches,
resets and the end run on the thread, in the order in which they were sent. `encode`, `prepare` and
`check` run on the thread of their caller. One thread sends and receives.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from jitney.core.backend import Backend, Segment
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, BackendFailed

CLOSE_S = 10.0
"""How long a close waits for a batch that runs. Native code cannot be interrupted."""

Result = TypeVar("Result")


class ThreadedBackend:
    """Implements `jitney.core.backend.QueueingBackend` around another backend, which it owns."""

    def __init__(self, backend: Backend) -> None:
        self.traits = backend.traits
        self.vocabulary = backend.vocabulary
        self._backend = backend
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._sent: deque[Future[Outcome]] = deque()
        self._has_failed = False
        """Whether a batch failed since the last reset. Batches after it are not run."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="jitney-backend", daemon=True)
        self._thread.start()

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch. Raises BackendFailed or BackendCrashed."""
        self.send(batch)
        outcome = self.receive()
        assert outcome is not None, "Without a limit there is an outcome"
        return outcome

    def send(self, batch: Batch) -> None:
        """Hand a batch over. Raises BackendCrashed after a close."""
        self._sent.append(self._call(lambda: self._execute(batch)))

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch sent; None when it does not come within `limit_s`."""
        try:
            outcome = self._sent[0].result(limit_s)
        except TimeoutError:
            return None
        except Exception:
            self._sent.clear()
            raise
        self._sent.popleft()
        return outcome

    def reset(self) -> None:
        """Empty every slot and ticket, when the batches under way are over."""
        self._sent.clear()
        self._call(self._reset).result()

    def check(self) -> None:
        """Raise BackendCrashed if it was closed."""
        self._backend.check()

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, one after the other."""
        return self._backend.encode(texts)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        self._backend.prepare(constraint)

    def close(self) -> None:
        """Release everything after the batch that runs; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._calls.put(self._backend.close)
        self._calls.put(None)
        self._thread.join(CLOSE_S)

    def _call(self, function: Callable[[], Result]) -> Future[Result]:
        """Run a function on the thread, after those before it."""
        if self._is_closed:
            raise BackendCrashed("The backend was closed.")
        future: Future[Result] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._calls.put(call)
        return future

    def _execute(self, batch: Batch) -> Outcome:
        if self._has_failed:
            raise BackendFailed("A batch before this one failed.")
        try:
            return self._backend.execute(batch)
        except Exception:
            self._has_failed = True
            raise

    def _reset(self) -> None:
        self._backend.reset()
        self._has_failed = False

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
