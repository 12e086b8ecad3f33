"""Decides whose work a worker thread does next: callers take turns. Pure.

A caller is a key; without keys all callers are one. Each caller has one line for small work and one
for large work. The lines take turns, and each line is served in the order of arrival.

One caller never has more threads than its `share`. Large work never has all threads, so small work
does not wait for all large work. When the share is less than all threads, there are several callers
and each has one large piece of work at a time. Constraints are compiled one after the other, so the
large work of another caller waits for one of them at most.
"""

from collections import deque
from typing import Generic, TypeVar

WorkT = TypeVar("WorkT")
Line = tuple[str, bool]
"""A caller, and whether its large work waits here."""


class FairQueue(Generic[WorkT]):
    """Work that waits, and how much of each line is being done."""

    def __init__(self, threads: int, share: int) -> None:
        assert 1 <= share <= threads, (share, threads)
        self._threads = threads
        self._share = share
        self._large_max = max(threads - 1, 1)
        self._large_share = 1 if share < threads else self._large_max
        # In the order of their turns: a line that had its turn goes to the end.
        self._waiting: dict[Line, deque[WorkT]] = {}
        self._begun: dict[Line, int] = {}

    @property
    def waiting(self) -> list[WorkT]:
        """Work that has not begun."""
        return [each for line in self._waiting.values() for each in line]

    def add(self, line: Line, work: WorkT) -> None:
        """Put work at the end of its line."""
        self._waiting.setdefault(line, deque()).append(work)

    def remove(self, line: Line, work: WorkT) -> bool:
        """Take work out of its line; false when it has begun."""
        if work not in self._waiting.get(line, ()):
            return False
        self._waiting[line].remove(work)
        self._tidy(line)
        return True

    def begin(self) -> WorkT | None:
        """Begin the next piece of work; None when no thread is free for any."""
        if sum(self._begun.values()) >= self._threads:
            return None
        for line, waiting in self._waiting.items():
            if self._may_begin(line):
                work = waiting.popleft()
                self._begun[line] = self._begun.get(line, 0) + 1
                self._waiting[line] = self._waiting.pop(line)
                self._tidy(line)
                return work
        return None

    def end(self, line: Line) -> None:
        """One piece of the line's work is done."""
        assert self._begun[line] > 0, line
        self._begun[line] -= 1
        if not self._begun[line]:
            del self._begun[line]

    def _may_begin(self, line: Line) -> bool:
        caller, is_large = line
        its_own = sum(self._begun.get((caller, each), 0) for each in (False, True))
        large = sum(count for (_, each), count in self._begun.items() if each)
        is_full = large >= self._large_max or self._begun.get(line, 0) >= self._large_share
        return its_own < self._share and not (is_large and is_full)

    def _tidy(self, line: Line) -> None:
        if not self._waiting[line]:
            del self._waiting[line]
