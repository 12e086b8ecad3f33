"""What each slot of a model's memory holds: tokens beside the native cells, and saved copies.

Called by backends on the engine thread only. Each memory operation is checked against the tokens
before the cells see it, so that a mistake of the scheduler is a BackendFailed and not a wrong
answer. A saved copy lives in RAM.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt

from jitney.core.batch import (
    Copy,
    Discard,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Save,
    Truncate,
)
from jitney.core.params import Constraint
from jitney.errors import BackendFailed, InvalidRequest, QueueFull
from jitney.sampling.sampler import SlotSampler, TokenMatcher


class Cells(Protocol):
    """The memory itself: keys and values of every slot."""

    def copy(self, source: int, target: int, length: int) -> bool:
        """The first tokens of one slot become those of another; false when there was no room."""
        ...

    def truncate(self, slot: int, length: int) -> bool:
        """Forget positions from `length` on; false when it cannot be done."""
        ...

    def save(self, slot: int) -> npt.NDArray[np.uint8]:
        """A copy of the slot's memory; empty when it cannot be had."""
        ...

    def restore(self, slot: int, state: npt.NDArray[np.uint8], length: int) -> bool:
        """Write a saved copy of `length` tokens into the empty slot; false if there is no room."""
        ...

    def clear(self) -> None:
        """Empty every slot."""
        ...


@dataclass(frozen=True, slots=True)
class LastRow:
    """Logits kept from one span to the next: they predict the token at `position`."""

    position: int
    logits: npt.NDArray[np.float32]


@dataclass(slots=True)
class SlotContents:
    """What one slot holds, and how its tokens are chosen once it was opened."""

    tokens: list[int] = field(default_factory=list)
    sampler: SlotSampler | None = None
    fault: str | None = None
    """Why this slot cannot be sampled (any more): such as a constraint that cannot go on."""
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
    """All slots, and the tickets."""

    def __init__(
        self, cells: Cells, slots: int, compile_constraint: Callable[[Constraint], TokenMatcher]
    ) -> None:
        self._cells = cells
        self._compile = compile_constraint
        self._slots = [SlotContents() for _ in range(slots)]
        self._tickets: dict[int, SavedSlot] = {}

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._cells.clear()
        self._slots = [SlotContents() for _ in self._slots]
        self._tickets.clear()

    def operate(self, operation: MemoryOperation) -> None:
        """Carry out one operation of a batch. Raises BackendFailed where it does not fit."""
        match operation:
            case Open():
                self._open(operation)
            case Copy():
                self._copy(operation)
            case Truncate():
                self._truncate(operation)
            case Save():
                self._save(operation)
            case Restore():
                self._restore(operation)
            case Release():
                self._release(operation)
            case Discard():
                self._ticket(operation.ticket)
            case _:
                assert_never(operation)

    def state(self, slot: int) -> SlotContents:
        """The state of a slot that exists."""
        if not 0 <= slot < len(self._slots):
            raise BackendFailed(f"slot {slot} does not exist; there are {len(self._slots)}.")
        return self._slots[slot]

    def _open(self, operation: Open) -> None:
        state, sampling = self.state(operation.slot), operation.sampling
        matcher = None
        state.fault = None
        if sampling.constraint is not None:
            try:
                matcher = self._compile(sampling.constraint)
            except (InvalidRequest, QueueFull) as error:
                # It compiled when it was prepared; the others in the batch are not to blame.
                state.fault = str(error)
        state.sampler = SlotSampler(sampling, matcher)
        state.token_last = None

    def _copy(self, operation: Copy) -> None:
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
        if not self._cells.copy(operation.source, operation.target, length):
            raise BackendFailed(
                f"memory has no room for the {length} tokens copied to slot {operation.target}."
            )
        target.tokens = source.tokens[:length]
        target.token_last = target.row_last = None

    def _truncate(self, operation: Truncate) -> None:
        state, length = self.state(operation.slot), operation.length
        if not 0 <= length <= len(state.tokens):
            raise BackendFailed(
                f"truncate of slot {operation.slot} to {length} tokens; "
                f"it holds {len(state.tokens)}."
            )
        if length < len(state.tokens):
            self._shorten(operation.slot, length)

    def _release(self, operation: Release) -> None:
        if self.state(operation.slot).tokens:
            self._shorten(operation.slot, 0)
        self._slots[operation.slot] = SlotContents()

    def _save(self, operation: Save) -> None:
        state = self.state(operation.slot)
        if operation.ticket in self._tickets:
            raise BackendFailed(f"save under ticket {operation.ticket}, which is taken.")
        if not state.tokens:
            raise BackendFailed(f"save of slot {operation.slot}, which is empty.")
        cells = self._cells.save(operation.slot)
        if not len(cells):
            raise BackendFailed(f"slot {operation.slot} could not be saved.")
        self._tickets[operation.ticket] = SavedSlot(tuple(state.tokens), cells, state.row_last)

    def _restore(self, operation: Restore) -> None:
        state = self.state(operation.slot)
        if state.tokens:
            raise BackendFailed(
                f"restore into slot {operation.slot}, which holds {len(state.tokens)} tokens."
            )
        saved = self._ticket(operation.ticket)
        if not self._cells.restore(operation.slot, saved.cells, len(saved.tokens)):
            raise BackendFailed(
                f"memory has no room for the {len(saved.tokens)} saved tokens of slot "
                f"{operation.slot}."
            )
        state.tokens = list(saved.tokens)
        state.row_last = saved.row_last
        state.token_last = None

    def _ticket(self, ticket: int) -> SavedSlot:
        if ticket not in self._tickets:
            raise BackendFailed(f"nothing is saved under ticket {ticket}.")
        return self._tickets.pop(ticket)

    def _shorten(self, slot: int, length: int) -> None:
        if not self._cells.truncate(slot, length):
            raise BackendFailed(f"slot {slot} could not be cut back to {length} tokens.")
        state = self._slots[slot]
        del state.tokens[length:]
        state.token_last = state.row_last = None
