"""`Staying`: running sequences while some of them are chosen to leave.

What the others hold is counted once and then kept right as one after the other is chosen: so who
makes room can be found, in vain or not, with a few looks at each running sequence. Nobody has left
yet, so it is right until memory changes.

Tests: tests/simulation and tests/unit/core/test_preemption.py.
"""

from jitney.core.ledger import Ledger
from jitney.core.sequence import Sequence


class Staying:
    """What those hold and need that stay."""

    def __init__(self, ledger: Ledger, running: list[Sequence]) -> None:
        self._ledger = ledger
        self.slots = {each.slot for each in running if each.slot is not None}
        assert len(self.slots) == len(running), "each that runs has a slot of its own"
        self._held = ledger.held(self.slots)
        self.promised = sum([self._growth(each) for each in running])
        """Blocks that they still need for their known tokens."""

    @property
    def held(self) -> int:
        """Blocks that they hold. Shared blocks count once."""
        return self._held.count

    def held_with(self, slot: int) -> int:
        """The same together with a slot of somebody else."""
        return self._held.count_with(slot)

    def leave(self, sequence: Sequence) -> None:
        """This one is chosen to leave."""
        assert sequence.slot is not None, "only a sequence with a slot leaves"
        self.slots.remove(sequence.slot)
        self._held.remove(sequence.slot)
        self.promised -= self._growth(sequence)

    def _growth(self, sequence: Sequence) -> int:
        assert sequence.slot is not None, "only a sequence with a slot grows"
        return self._ledger.growth(sequence.slot, len(sequence.tokens))
