"""Shares each round of the event loop among the connections that have sent something: `Rounds`.

Whoever sends much, in whatever small parts, has it read a little in each round; in between are
everybody else's streams, and those who have come meanwhile. Event loop.
"""

from collections.abc import Callable
from typing import Protocol

from jitney.server import limits


class _Loop(Protocol):
    def call_soon(self, callback: Callable[[], None], /) -> object: ...


class Rounds:
    """What is left of this round, and who goes on in the next one, in the order of asking."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._left = limits.STEPS_PER_ROUND
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_called = False

    @property
    def is_over(self) -> bool:
        """Whether no more may be done in this round."""
        return self._left <= 0

    def take(self, steps: int) -> None:
        """So much was done; what was done beyond the end of a round is missing in the next."""
        self._left -= steps
        self._call()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call this in the next round, or in one of those after it."""
        self._waiting[go_on] = None
        self._call()

    def leave(self, go_on: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._waiting.pop(go_on, None)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_called = False
        self._left = min(self._left, 0) + limits.STEPS_PER_ROUND
        while self._waiting and not self.is_over:
            go_on = next(iter(self._waiting))
            del self._waiting[go_on]
            go_on()
        if self._waiting or self._left < limits.STEPS_PER_ROUND:
            self._call()
