"""For machines of any speed: backends that are slow, or wait, until a test has seen what it wanted,
and a clock that stands still.
"""

import threading
from collections.abc import Sequence
from typing import Any

from jitney.backends.fake.backend import FakeSettings
from jitney.core.backend import Segment
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint
from jitney.engine.clock import SystemClock
from tests.e2e.server.harness import WAIT_S

SLOW_PROGRAM = """
from dataclasses import replace
from jitney.backends.fake import kind
from jitney.cli.main import run

def slow(settings, source, values=kind.KIND.values):
    return {**values(settings, source), "tick_s": 0.02, "sleeps": True}

kind.KIND = replace(kind.KIND, values=slow)
run()
"""
"""`jitney` whose fake backend takes its time, in whatever process it is."""


SLOW = FakeSettings(slots=32, eos_period=0, kv_tokens=65_536, tick_s=0.02, sleeps=True)


class StillClock:
    """It is always the moment when this was made, or an earlier one, so that no rate is refilled
    while a test runs."""

    def __init__(self, behind_s: float = 0.0) -> None:
        self._moment = SystemClock().now() - behind_s

    def now(self) -> float:
        return self._moment


class Pace:
    """How fast the backends of a test are: slow, and quick from when they may hurry.

    An answer of N tokens lasts N times `tick_s` at least, so that a test which stands still for a
    while comes in time; and it need not wait for the rest of the answer.
    """

    def __init__(self, tick_s: float = 0.1) -> None:
        self.tick_s = tick_s
        self.may_hurry = threading.Event()

    def wrap(self, backend: Any) -> "Paced":  # Any: a backend
        return Paced(backend, self)


class BackendFront:
    """A backend in front of another; what a test has no other idea of, the other one does."""

    def __init__(self, backend: Any) -> None:  # Any: a backend
        self.backend = backend

    def __getattr__(self, name: str) -> Any:  # Any: whatever the backend has
        return getattr(self.backend, name)

    def execute(self, batch: Batch) -> Outcome:
        outcome: Outcome = self.backend.execute(batch)
        return outcome


class Paced(BackendFront):
    """A backend in front of which each batch waits."""

    def __init__(self, backend: Any, pace: Pace) -> None:  # Any: a backend
        super().__init__(backend)
        self._pace = pace

    def execute(self, batch: Batch) -> Outcome:
        self._pace.may_hurry.wait(self._pace.tick_s)
        return super().execute(batch)


class Gated(BackendFront):
    """A backend that tokenises, compiles and computes only while it may, and notes what comes."""

    def __init__(self, backend: Any) -> None:  # Any: a backend
        super().__init__(backend)
        self.may_read, self.may_run = threading.Event(), threading.Event()
        self.may_read.set()
        self.may_run.set()
        self.reads: list[str] = []
        """Which of its functions were called."""
        self.text_counts: list[int] = []
        """How many texts each call to the tokenizer brought."""
        self.batch_count = 0
        self.batch_count_max: int | None = None
        """After so many batches it may run no more."""
        self.waits = threading.Event()
        """Set once a batch waits."""

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        self.reads.append("encode")
        self.text_counts.append(len(texts))
        assert self.may_read.wait(2 * WAIT_S), "nobody let it go"
        tokens: list[int] = self.backend.encode(texts)
        return tokens

    def prepare(self, constraint: Constraint) -> None:
        self.reads.append("prepare")
        assert self.may_read.wait(2 * WAIT_S), "nobody let it go"
        self.backend.prepare(constraint)

    def execute(self, batch: Batch) -> Outcome:
        if self.batch_count == self.batch_count_max:
            self.may_run.clear()
        self.batch_count += 1
        if not self.may_run.is_set():
            self.waits.set()
            assert self.may_run.wait(2 * WAIT_S), "nobody let it go"
        return super().execute(batch)
