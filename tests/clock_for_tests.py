"""A clock that a test moves."""

from dataclasses import dataclass


@dataclass
class HandClock:
    """Time passes when the test says so."""

    at: float = 0.0

    def now(self) -> float:
        return self.at
