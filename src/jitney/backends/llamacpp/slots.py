"""What each slot of llama.cpp's memory holds: tokens beside the native cells, and saved copies.

Called by `backend` on the engine thread only. Each memory operation is checked against the tokens
before the library sees it, so that a mistake of the scheduler is a BackendFailed and not a wrong
answer. In one pool a copy shares cells and costs nothing; a saved copy lives in RAM.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from jitney.backends.llamacpp.bindings import Context
from jitney.core.batch import Copy, Discard, Release, Restore, Save, Truncate
from jitney.errors import BackendFailed
from jitney.sampling.sampler import SlotSampler


@dataclass(frozen=True, slots=True)
class LastRow:
    """Logits kept from one span to the next: they predict the token at `position`."""

    position: int
    logits: npt.NDArray[np.float32]


@dataclass(slots=True)
class SlotState:
    """What one slot holds, and how its tokens are chosen once it was opened."""

    tokens: list[int] = field(default_factory=list)
    sampler: SlotSampler | None = None
    fault: str | None = None
    """Why this slot cannot be sampled: its constraint does not compile."""
    token_last: int | None = None
    """The token sampled last for this slot, as long as it would stand right after `tokens`."""
    row_last: LastRow | None = None


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """A slot's memory outside of it."""

    tokens: tuple[int, ...]
    cells: npt.NDArray[np.uint8]
    row_last: LastRow | None


class SlotMemory:
    """All slots of one context, and the tickets."""

    def __init__(self, context: Context, slots: int) -> None:
        self._context = context
        self._slots = [SlotState() for _ in range(slots)]
        self._tickets: dict[int, SavedSlot] = {}

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._context.clear()
        self._slots = [SlotState() for _ in self._slots]
        self._tickets.clear()

    def state(self, slot: int) -> SlotState:
        """The state of a slot that exists."""
        if not 0 <= slot < len(self._slots):
            raise BackendFailed(f"slot {slot} does not exist; there are {len(self._slots)}.")
        return self._slots[slot]

    def copy(self, operation: Copy) -> None:
        """The first tokens of one slot become the memory of another, empty one."""
        source, target = self.state(operation.source), self.state(operation.target)
        length = operation.length
        if target.tokens:
            raise BackendFailed(
                f"copy onto slot {operation.target}, which holds {len(target.tokens)} tokens."
            )
        if not 0 < length <= len(source.tokens):
            raise BackendFailed(
                f"copy of {length} tokens from slot {operation.source}, "
                f"which holds {len(source.tokens)}."
            )
        if not self._context.copy(operation.source, operation.target, length):
            raise BackendFailed(
                f"memory has no room for the {length} tokens copied to slot {operation.target}."
            )
        target.tokens = source.tokens[:length]
        target.token_last = target.row_last = None

    def truncate(self, operation: Truncate) -> None:
        """Forget what the slot holds from a position on."""
        state, length = self.state(operation.slot), operation.length
        if not 0 <= length <= len(state.tokens):
            raise BackendFailed(
                f"truncate of slot {operation.slot} to {length} tokens; "
                f"it holds {len(state.tokens)}."
            )
        if length < len(state.tokens):
            self._shorten(operation.slot, length)

    def release(self, operation: Release) -> None:
        """Forget everything the slot holds, and how its tokens were chosen."""
        if self.state(operation.slot).tokens:
            self._shorten(operation.slot, 0)
        self._slots[operation.slot] = SlotState()

    def save(self, operation: Save) -> None:
        """Keep a copy of the slot's memory under a ticket."""
        state = self.state(operation.slot)
        if operation.ticket in self._tickets:
            raise BackendFailed(f"save under ticket {operation.ticket}, which is taken.")
        if not state.tokens:
            raise BackendFailed(f"save of slot {operation.slot}, which is empty.")
        cells = self._context.save(operation.slot)
        if not len(cells):
            raise BackendFailed(f"llama.cpp could not save slot {operation.slot}.")
        self._tickets[operation.ticket] = SavedSlot(tuple(state.tokens), cells, state.row_last)

    def restore(self, operation: Restore) -> None:
        """Bring a saved copy into an empty slot; the ticket is spent."""
        state = self.state(operation.slot)
        if state.tokens:
            raise BackendFailed(
                f"restore into slot {operation.slot}, which holds {len(state.tokens)} tokens."
            )
        saved = self._ticket(operation.ticket)
        if not self._context.restore(operation.slot, saved.cells):
            raise BackendFailed(
                f"memory has no room for the {len(saved.tokens)} saved tokens of slot "
                f"{operation.slot}."
            )
        state.tokens = list(saved.tokens)
        state.row_last = saved.row_last
        state.token_last = None

    def discard(self, operation: Discard) -> None:
        """Forget what was saved under a ticket."""
        self._ticket(operation.ticket)

    def _ticket(self, ticket: int) -> SavedSlot:
        if ticket not in self._tickets:
            raise BackendFailed(f"nothing is saved under ticket {ticket}.")
        return self._tickets.pop(ticket)

    def _shorten(self, slot: int, length: int) -> None:
        if not self._context.truncate(slot, length):
            raise BackendFailed(f"llama.cpp could not cut slot {slot} back to {length} tokens.")
        state = self._slots[slot]
        del state.tokens[length:]
        state.token_last = state.row_last = None
