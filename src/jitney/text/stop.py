"""Stop strings: `StopMatcher`, one per sequence.

Called from the engine thread. No part of a stop string ever leaves it (invariant 5), however the
text is cut into pieces: what could still become one is held back.

The match is the one whose end comes first in the text; of several that end at the same place, the
longest. This is what can be decided as the text comes in, without waiting for a longer match, and
so it is the same however the text is cut.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that is safe to show, and the stop string that ended it, if one did."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Looks for stop strings in text that comes in pieces; `include` keeps the match itself."""

    def __init__(self, stops: tuple[str, ...], include: bool) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = stops
        self._include = include
        self._held = ""
        self._is_over = False
        # For each stop string, after which of its characters a text may break off, longest first.
        self._prefixes = tuple(_prefixes(stop) for stop in stops)

    def push(self, text: str) -> StopResult:
        """Text that cannot be part of a stop string any more. Nothing after the first match."""
        if not self._stops:
            return StopResult(text)
        if self._is_over or not text:
            return StopResult("")
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            self._is_over = True
            self._held = ""
            end = text.find(found) + len(found)
            return StopResult(text[: end if self._include else end - len(found)], found)
        count = self._held_count(text)
        self._held = text[len(text) - count :]
        return StopResult(text[: len(text) - count])

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> str | None:
        best: tuple[int, int] | None = None
        match = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best, match = (start + len(stop), start), stop
        return match

    def _held_count(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop, prefixes in zip(self._stops, self._prefixes, strict=True):
            for count in prefixes.get(text[-1], ()):
                if count <= longest:
                    break
                if text.endswith(stop[:count]):
                    longest = count
                    break
        return longest


def _prefixes(stop: str) -> dict[str, tuple[int, ...]]:
    """Lengths of the proper beginnings of `stop` by their last character, longest first."""
    found: dict[str, tuple[int, ...]] = {}
    for count in range(len(stop) - 1, 0, -1):
        found[stop[count - 1]] = (*found.get(stop[count - 1], ()), count)
    return found
