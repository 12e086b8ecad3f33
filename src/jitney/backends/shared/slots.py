"""What each slot of a model's memory holds: the tokens beside the native cells, and saved copies.

Called by backends on the thread that runs batches. Each memory operation is checked against the
tokens before it reaches the cells, so a mistake of the scheduler is a BackendFailed and not a wrong
answer. `HostSampler` keeps with a slot how its tokens are chosen.

Libraries choose kernels by the shape of a pass, and each kernel rounds in its own way. Some take
rows in groups and the rest one by one; some compute a single token in another way than a span. So a
backend that promises equal texts (invariant 4) fills the groups (`rows_missing`), and computes no
token of a prompt alone (`is_lone`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, assert_never

import numpy as np
import numpy.typing as npt

from jitney.core import batch
from jitney.errors import BackendFailed
from jitney.sampling.sampler import SlotSampler

SavedCells = TypeVar("SavedCells")
"""A saved copy of one slot's cells, in the form of the backend."""


class Cells(Protocol[SavedCells]):
    """The memory itself: keys and values of every slot. Raises BackendFailed, as without room."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first tokens of one slot to another, empty one."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget positions from `length` on."""

    def save(self, slot: int) -> SavedCells:
        """A copy of the slot's memory."""

    def restore(self, slot: int, saved: SavedCells, length: int) -> None:
        """Write a saved copy of `length` tokens into the empty slot."""

    def clear(self) -> None:
        """Empty every slot."""


@dataclass(frozen=True, slots=True)
class LastRow:
    """Logits kept from one entry to the next: they predict the token at `position`."""

    position: int
    logits: npt.NDArray[np.float32]


@dataclass(slots=True)
class SlotContents:
    """What one slot holds, and how its tokens are chosen."""

    tokens: list[int] = field(default_factory=list)
    """The tokens whose keys and values are in the cells, from position 0 on."""
    sampling: batch.Sampling | None = None
    """What it was opened with."""
    sampler: SlotSampler | None = None
    fault: batch.Fault | None = None
    """Why this slot cannot be sampled, such as a constraint that allows no token."""
    token_last: int | None = None
    """The token chosen last, while it is the next one after the slot's tokens."""
    row_last: LastRow | None = None

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        return len(self.tokens)

    @property
    def prompt_count(self) -> int:
        """The number of prompt tokens; 0 before the slot is opened."""
        return 0 if self.sampling is None else self.sampling.prompt_count


@dataclass(frozen=True, slots=True)
class EntryRows:
    """An entry for the model: its tokens, the contents of its slot, and its rows of the logits."""

    index: int
    """Its place among the entries of the batch."""
    entry: batch.Entry
    contents: SlotContents
    tokens: tuple[int, ...]
    rows: range
    """Its rows, in the order of positions. The last is for the entry's last position."""
    scored: range
    """Positions of prompt tokens whose logprobs are wanted."""


def rows_missing(rows: int, group: int) -> int:
    """How many rows to add for a whole number of groups."""
    return -rows % group


def is_lone(entry: batch.Entry, prompt_count: int) -> bool:
    """Whether an entry is a single token of a prompt, and not its first.

    The first token sees only itself, which gives the same result in every kernel.
    """
    return entry.length == 1 and 0 < entry.start < prompt_count


class Disk(Protocol):
    """Where prefixes are stored: `jitney.backends.shared.prefix_disk`."""

    def store(self, slot: int, scope: str, tokens: Sequence[int], usable_count: int) -> None:
        """Write down what a slot holds."""


class SlotMemory(Generic[SavedCells]):
    """All slots, and the tickets."""

    disk: Disk | None = None

    def __init__(self, cells: Cells[SavedCells], slots: int, *, rewinds: bool = True) -> None:
        self._cells = cells
        self._rewinds = rewinds
        self._slots = [SlotContents() for _ in range(slots)]
        self._tickets: dict[int, tuple[Sequence[int], LastRow | None, SavedCells]] = {}

    @property
    def tickets(self) -> frozenset[int]:
        """The tickets under which something is saved."""
        return frozenset(self._tickets)

    def tokens_under(self, ticket: int) -> tuple[int, ...]:
        """The tokens of what is saved under a ticket."""
        return tuple(self._tickets[ticket][0])

    def keep(self, ticket: int, tokens: Sequence[int], saved: SavedCells) -> None:
        """Any thread: a copy came from elsewhere. It is restored or discarded like a saved one."""
        self._tickets[ticket] = (tokens, None, saved)

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._cells.clear()
        self._slots = [SlotContents() for _ in self._slots]
        self._tickets.clear()

    def operate(self, operation: batch.MemoryOperation) -> None:
        """Carry out one operation of a batch. Raises BackendFailed where it does not fit."""
        match operation:
            case batch.Open():
                self.contents(operation.slot).sampling = operation.sampling
            case batch.Copy():
                self._copy(operation)
            case batch.Truncate():
                self._truncate(operation)
            case batch.Save():
                self._save(operation)
            case batch.Store():
                self._store(operation)
            case batch.Restore():
                self._restore(operation)
            case batch.Release():
                self._shorten(operation.slot, 0)
                self._slots[operation.slot] = SlotContents()
            case batch.Discard():
                # A copy that was fetched may have come before a reset or after it.
                self._tickets.pop(operation.ticket, None)
            case _:
                assert_never(operation)

    def contents(self, slot: int) -> SlotContents:
        """What a slot that exists holds."""
        if not 0 <= slot < len(self._slots):
            raise BackendFailed(f"Slot {slot} does not exist; there are {len(self._slots)}.")
        return self._slots[slot]

    def _copy(self, operation: batch.Copy) -> None:
        source, target = self.contents(operation.source), self.contents(operation.target)
        length = operation.length
        if target.length:
            raise BackendFailed(
                f"Copy onto slot {operation.target}, which holds {target.length} tokens."
            )
        if not 0 < length <= source.length:
            raise BackendFailed(
                f"Copy of {length} tokens from slot {operation.source}, "
                f"which holds {source.length}."
            )
        self._check_whole(operation.source, length)
        self._cells.copy(operation.source, operation.target, length)
        target.tokens += source.tokens[:length]
        target.token_last = target.row_last = None

    def _truncate(self, operation: batch.Truncate) -> None:
        contents, length = self.contents(operation.slot), operation.length
        if not 0 <= length <= contents.length:
            raise BackendFailed(
                f"Truncate of slot {operation.slot} to {length} tokens; it holds {contents.length}."
            )
        self._check_whole(operation.slot, length)
        self._shorten(operation.slot, length)
        contents.token_last = contents.row_last = None

    def _check_whole(self, slot: int, length: int) -> None:
        held = self.contents(slot).length
        if not self._rewinds and length < held:
            raise BackendFailed(
                f"The first {length} tokens of slot {slot}, which holds {held}: its state is there "
                "for all of them or not at all."
            )

    def _save(self, operation: batch.Save) -> None:
        contents = self.contents(operation.slot)
        if operation.ticket in self._tickets:
            raise BackendFailed(f"Save under ticket {operation.ticket}, which is taken.")
        if not contents.length:
            raise BackendFailed(f"Save of slot {operation.slot}, which is empty.")
        saved = self._cells.save(operation.slot)
        self._tickets[operation.ticket] = (contents.tokens.copy(), contents.row_last, saved)

    def _restore(self, operation: batch.Restore) -> None:
        contents = self.contents(operation.slot)
        if contents.length:
            raise BackendFailed(
                f"Restore into slot {operation.slot}, which holds {contents.length} tokens."
            )
        if operation.ticket not in self._tickets:
            raise BackendFailed(f"Nothing is saved under ticket {operation.ticket}.")
        tokens, row_last, saved = self._tickets.pop(operation.ticket)
        self._cells.restore(operation.slot, saved, len(tokens))
        contents.tokens += tokens
        contents.token_last, contents.row_last = None, row_last

    def _store(self, operation: batch.Store) -> None:
        contents, length = self.contents(operation.slot), operation.length
        if not 0 < length <= contents.length:
            raise BackendFailed(
                f"Store of {length} tokens of slot {operation.slot}, which holds {contents.length}."
            )
        if self.disk is not None:
            self.disk.store(operation.slot, operation.scope, contents.tokens, length)

    def _shorten(self, slot: int, length: int) -> None:
        contents = self.contents(slot)
        if length < contents.length:
            self._cells.truncate(slot, length)
            del contents.tokens[length:]
