"""Invariant 15: the disk for prefixes holds what may be on it, and is waited for within bounds.

Stored is a prompt that its caller lets be stored, when it was computed, and the files are within
their budget. Nobody is asked for while another fetch is under way. That nothing of another scope,
model or machine is used, and no token too many, the checkers `scope` and `oracle` see.
"""

from collections.abc import Mapping

from jitney.core.batch import Store
from jitney.core.limits import FETCH_S_MAX
from tests.simulation.alone import Oracle
from tests.simulation.disk import DictShelf
from tests.simulation.seen import (
    Answered,
    Asked,
    Executed,
    Happened,
    Name,
    Planned,
    Seen,
    Ticked,
    Violation,
)

NAME = "disk"


class DiskChecker:
    """Knows which fetch is under way, and when one was."""

    def __init__(self, oracle: Oracle, shelf: DictShelf | None, limit: int) -> None:
        self._oracle = oracle
        self._shelf = shelf
        self._limit = limit
        self._owners: Mapping[int, Name] = {}
        self._fed_by: dict[int, Name] = {}
        """Who computed last in each slot, which may have another owner when it is stored."""
        self._asked: dict[int, float] = {}
        self._busy_at: set[float] = set()

    def was_busy(self, at: float) -> bool:
        """Whether somebody may have waited for the disk in the plan of this time."""
        return at in self._busy_at

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Asked():
                self._ask(seen)
            case Answered():
                self._asked.pop(seen.found.ticket, None)
            case Planned():
                self._plan(seen)
            case Executed():
                self._execute(seen)
            case Happened(method="fail"):
                self._asked.clear()
            case Ticked():
                self._measure()

    def _ask(self, seen: Asked) -> None:
        if self._asked:
            raise Violation(NAME, "a second fetch is asked while one is under way")
        self._asked[seen.fetch.ticket] = seen.at

    def _plan(self, seen: Planned) -> None:
        self._owners = seen.owners
        if any(seen.at < at + FETCH_S_MAX for at in self._asked.values()):
            self._busy_at.add(seen.at)

    def _execute(self, seen: Executed) -> None:
        for operation in seen.batch.operations:
            if isinstance(operation, Store):
                self._store(operation)
        for entry in seen.batch.entries:
            self._fed_by[entry.slot] = self._owners[entry.slot]

    def _measure(self) -> None:
        used = 0 if self._shelf is None else self._shelf.bytes
        if used > self._limit:
            raise Violation(NAME, f"{used} bytes of {self._limit} are used")

    def _store(self, operation: Store) -> None:
        request = self._oracle.request(self._fed_by[operation.slot])
        if not request.is_stored:
            raise Violation(NAME, f"{request.id} is stored, and its caller wants that it is not")
