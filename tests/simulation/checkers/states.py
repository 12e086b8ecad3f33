"""Decision 33: a copy of a state stays for others, and nobody gets what a faulty sequence left.

Keeps a record of its own of who filled each slot, and looks at it whenever a slot gets an owner.
"""

from collections.abc import Mapping

from jitney.core.batch import Batch, Copy, Open, Release, Restore
from tests.simulation.seen import Happened, Injected, Name, Planned, Seen, Violation

NAME = "states"


class StatesChecker:
    """Knows which slots hold copies that were made to be kept, and whose states they are."""

    def __init__(self) -> None:
        self._fillers: dict[int, Name] = {}
        """Who computed last what a slot holds."""
        self._copies: set[int] = set()
        self._owners: Mapping[int, Name] = {}
        self._struck: dict[int, Name] = {}
        """By the number of a batch that has not returned: who will get a fault from it."""
        self._faulty: set[Name] = set()

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Planned(batch=Batch() as batch):
                self._follow(batch, seen.owners)
                self._owners = seen.owners
                self._fillers |= seen.owners
            case Injected(slot=int() as slot, batch=batch):
                self._struck[batch.number] = self._fillers[slot]
            case Happened(method="apply", batch=Batch() as batch):
                if batch.number in self._struck:
                    self._faulty.add(self._struck.pop(batch.number))
            case Happened(method="fail"):
                self._fillers.clear()
                self._copies.clear()
                self._struck.clear()
                self._owners = {}

    def _follow(self, batch: Batch, owners: Mapping[int, Name]) -> None:
        opened = {each.slot for each in batch.operations if isinstance(each, Open)}
        made: set[int] = set()
        taken: set[int] = set()
        for operation in batch.operations:
            match operation:
                case Copy():
                    if (filler := self._fillers.get(operation.source)) is not None:
                        self._fillers[operation.target] = filler
                    if operation.target not in opened:
                        made.add(operation.target)
                case Restore() | Release():
                    self._fillers.pop(operation.slot, None)
                    self._copies.discard(operation.slot)
                    made.discard(operation.slot)
                case Open():
                    if (filler := self._fillers.get(operation.slot)) in self._faulty:
                        raise Violation(NAME, f"{owners.get(operation.slot)} goes on from {filler}")
                    if operation.slot in self._copies:
                        taken.add(operation.slot)
        # Of those that could have been evicted instead, none is left where there is no other way.
        left = self._fillers.keys() - owners.keys() - self._owners.keys() - made
        if taken and left:
            raise Violation(NAME, f"copies in {taken} are taken over, and {left} are only cached")
        self._copies = (self._copies | made) - opened
