"""Time: the only file that asks the machine for it.

The tick takes its `now` from a `Clock` and hands it down, so that a simulator can drive the whole
engine with a clock of its own.

Tests: tests/unit/engine/test_engine.py.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow; where zero lies is of no meaning."""

    def now(self) -> float:
        """The present moment."""
        ...


class SystemClock:
    """The machine's monotonic clock; any thread may ask it."""

    def now(self) -> float:
        """Seconds since some fixed moment of this machine."""
        return time.monotonic()


def epoch_offset_s() -> float:
    """What to add to a moment of the SystemClock to get seconds since 1970, as of now."""
    return time.time() - time.monotonic()
