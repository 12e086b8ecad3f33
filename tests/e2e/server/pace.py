"""For machines of any speed: a backend that is slow until a test has seen what it wanted, and a
clock that stands still.
"""

import threading
from typing import Any

from jitney.core.batch import Batch, Outcome
from jitney.engine.clock import SystemClock

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


class StillClock:
    """It is always the moment when this was made, so that no rate is refilled while a test runs."""

    def __init__(self) -> None:
        self._moment = SystemClock().now()

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


class Paced:
    """A backend in front of which each batch waits."""

    def __init__(self, backend: Any, pace: Pace) -> None:
        self._backend = backend
        self._pace = pace

    def __getattr__(self, name: str) -> Any:  # Any: whatever the backend has
        return getattr(self._backend, name)

    def execute(self, batch: Batch) -> Outcome:
        self._pace.may_hurry.wait(self._pace.tick_s)
        outcome: Outcome = self._backend.execute(batch)
        return outcome
