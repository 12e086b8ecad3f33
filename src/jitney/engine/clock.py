"""The clock of the engine. No other file of the engine reads the machine's time.

The tick reads `now` from a `Clock` and passes it on. So a simulator can drive the whole engine with
its own clock.

Tests: tests/unit/engine/test_engine.py.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow. Their zero has no meaning."""

    def now(self) -> float:
        """The present moment."""


class SystemClock:
    """The machine's monotonic clock. Any thread may read it."""

    now = staticmethod(time.monotonic)
    """Seconds since a fixed moment of this machine."""


def epoch_offset_s() -> float:
    """Add this to a time of the SystemClock to get seconds since 1970."""
    return time.time() - time.monotonic()
