"""Who is next at the door: callers take turns, whatever each of them brings. Pure.

A caller is a key; without keys all callers are one. Turns go round those who wait, one each, and
what one caller brought is done in the order in which it came. One caller never has more than its
`share` of the places, so that where there are several, one place is left for the others.
"""

from collections import deque
from typing import Generic, TypeVar

Errand = TypeVar("Errand")


class Turns(Generic[Errand]):
    """Errands that wait, and how many of each caller's are under way."""

    def __init__(self, places: int, share: int) -> None:
        assert 1 <= share <= places, (share, places)
        self._places = places
        self._share = share
        # In the order of their turns: whoever had one goes to the end.
        self._lines: dict[str, deque[Errand]] = {}
        self._under_way: dict[str, int] = {}

    @property
    def waiting_count(self) -> int:
        """Errands that have not begun."""
        return sum(map(len, self._lines.values()))

    def enter(self, caller: str, errand: Errand) -> None:
        """The errand waits from here on, behind those of its caller."""
        self._lines.setdefault(caller, deque()).append(errand)

    def withdraw(self, caller: str, errand: Errand) -> bool:
        """It is not wanted any more; false when it has begun."""
        line = self._lines.get(caller, ())
        if errand not in line:
            return False
        self._lines[caller].remove(errand)
        self._tidy(caller)
        return True

    def begin(self) -> Errand | None:
        """The next one, which is under way from here on; None when no place is left for any."""
        if sum(self._under_way.values()) >= self._places:
            return None
        for caller, line in self._lines.items():
            if self._under_way.get(caller, 0) < self._share:
                errand = line.popleft()
                self._under_way[caller] = self._under_way.get(caller, 0) + 1
                self._lines[caller] = self._lines.pop(caller)
                self._tidy(caller)
                return errand
        return None

    def end(self, caller: str) -> None:
        """One of the caller's errands is done."""
        assert self._under_way[caller] > 0, caller
        self._under_way[caller] -= 1
        if not self._under_way[caller]:
            del self._under_way[caller]

    def _tidy(self, caller: str) -> None:
        if not self._lines[caller]:
            del self._lines[caller]
