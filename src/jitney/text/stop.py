"""Stop strings: `StopMatcher`, one per sequence.

Called from the engine thread. No part of a stop string ever leaves it (invariant 5), however the
text is cut into pieces: what could still become one is held back.

The match is the one whose end comes first in the text; of several that end at the same place, the
longest. This is what can be decided as the text comes in, without waiting for a longer match, and
so it is the same however the text is cut.

All that it keeps is the state of the table that the sequence shares with others of its call: what
is held back is the beginning of a stop string, and the table has that.
"""

from dataclasses import dataclass

from jitney.core.stops import StopTable


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that is safe to show, and the stop string that ended it, if one did."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Looks for stop strings in text that comes in pieces; `include` keeps the match itself."""

    def __init__(self, table: StopTable, include: bool) -> None:
        self._table = table
        self._include = include
        self._state = 0
        self._is_over = False

    def push(self, text: str) -> StopResult:
        """Text that cannot be part of a stop string any more. Nothing after the first match."""
        if self._is_over or not text:
            return StopResult("")
        before = self._state
        self._state, count = self._table.follow(before, text)
        matched = self._table.matched(self._state)
        if matched is None:
            return StopResult(self._shown(before, text, self._table.length(self._state)))
        self._is_over = True
        self._state = 0
        hidden_count = 0 if self._include else len(matched)
        return StopResult(self._shown(before, text[:count], hidden_count), matched)

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        state, self._state = self._state, 0
        return self._table.beginning(state, self._table.length(state))

    def _shown(self, before: int, text: str, hidden_count: int) -> str:
        """What was held before and this text, less so many characters at the end."""
        text_count = len(text) - hidden_count
        if text_count < 0:
            return self._table.beginning(before, self._table.length(before) + text_count)
        return self._table.beginning(before, self._table.length(before)) + text[:text_count]
