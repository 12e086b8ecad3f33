"""Who is next at the door: callers take turns, whatever each of them brings. Pure.

A caller is a key; without keys all callers are one. Turns go round the lines, one each, and a line
is done in the order in which it came; each caller has one line for small errands and one for large
ones. One caller never has more than its `share` of the places, and large errands of whomever leave
one: what is small never waits for all that is large. Where that share is not all of them, there are
others, and a caller has one large errand at a time: constraints are compiled one after the other,
and the large errand of another waits for one of them at most.
"""

from collections import deque
from typing import Generic, TypeVar

Errand = TypeVar("Errand")
Line = tuple[str, bool]
"""A caller, and whether its large errands stand here."""


class Turns(Generic[Errand]):
    """Errands that wait, and how many of each line are under way."""

    def __init__(self, places: int, share: int) -> None:
        assert 1 <= share <= places, (share, places)
        self._places = places
        self._share = share
        self._large_max = max(places - 1, 1)
        self._large_share = 1 if share < places else self._large_max
        # In the order of their turns: the one that had a turn goes to the end.
        self._waiting: dict[Line, deque[Errand]] = {}
        self._under_way: dict[Line, int] = {}

    @property
    def waiting_count(self) -> int:
        """Errands that have not begun."""
        return sum(map(len, self._waiting.values()))

    def enter(self, line: Line, errand: Errand) -> None:
        """The errand waits from here on, behind those of its line."""
        self._waiting.setdefault(line, deque()).append(errand)

    def withdraw(self, line: Line, errand: Errand) -> bool:
        """It is not wanted any more; false when it has begun."""
        if errand not in self._waiting.get(line, ()):
            return False
        self._waiting[line].remove(errand)
        self._tidy(line)
        return True

    def begin(self) -> Errand | None:
        """The next one, which is under way from here on; None when no place is left for any."""
        if sum(self._under_way.values()) >= self._places:
            return None
        for line, errands in self._waiting.items():
            if self._has_place(line):
                errand = errands.popleft()
                self._under_way[line] = self._under_way.get(line, 0) + 1
                self._waiting[line] = self._waiting.pop(line)
                self._tidy(line)
                return errand
        return None

    def end(self, line: Line) -> None:
        """One of the line's errands is done."""
        assert self._under_way[line] > 0, line
        self._under_way[line] -= 1
        if not self._under_way[line]:
            del self._under_way[line]

    def _has_place(self, line: Line) -> bool:
        caller, is_large = line
        its_own = sum(self._under_way.get((caller, each), 0) for each in (False, True))
        large = sum(count for (_, each), count in self._under_way.items() if each)
        is_full = large >= self._large_max or self._under_way.get(line, 0) >= self._large_share
        return its_own < self._share and not (is_large and is_full)

    def _tidy(self, line: Line) -> None:
        if not self._waiting[line]:
            del self._waiting[line]
