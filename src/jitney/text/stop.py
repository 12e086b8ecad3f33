"""Stop strings: `StopMatcher`, one per sequence.

Called from the engine thread. It never shows a part of a stop string (invariant 5), in whatever
pieces the text arrives: it holds back text that could still become a stop string.

The match is the one that ends first in the text; among matches that end at the same place, the
longest. This needs no waiting for a longer match, so the result does not depend on the pieces.

It keeps only a state of the stop table, which all sequences of a call share. The text that it holds
back is the beginning of a stop string, and the table has that text.
"""

from dataclasses import dataclass

from jitney.core.stops import StopTable


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that is safe to show, and the stop string that ended it, if any."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Finds stop strings in text that arrives in pieces. With `include` it shows the match too."""

    def __init__(self, table: StopTable, include: bool) -> None:
        self._table = table
        self._include = include
        self._state = 0
        self._is_over = False

    def push(self, text: str) -> StopResult:
        """Text that can no longer be part of a stop string; empty after the first match."""
        if self._is_over or not text:
            return StopResult("")
        before = self._state
        self._state, count = self._table.follow(before, text)
        matched = self._table.matched(self._state)
        if matched is None:
            return StopResult(self._visible(before, text, self._table.length(self._state)))
        self._is_over = True
        self._state = 0
        hidden_count = 0 if self._include else len(matched)
        return StopResult(self._visible(before, text[:count], hidden_count), matched)

    def flush(self) -> str:
        """The text that was held back; call it after the last piece."""
        state, self._state = self._state, 0
        return self._table.beginning(state, self._table.length(state))

    def _visible(self, before: int, text: str, hidden_count: int) -> str:
        """The text held back in state `before`, then `text`, without the last `hidden_count`."""
        text_count = len(text) - hidden_count
        if text_count < 0:
            return self._table.beginning(before, self._table.length(before) + text_count)
        return self._table.beginning(before, self._table.length(before)) + text[:text_count]
