"""`PrefixDisk`: between the slots of a backend and its files of prefixes.

`store` runs on the thread that runs batches: everybody waits while the slot is copied, and nobody
while the copy is written. `fetch` may run on any other one; what it found is kept under a ticket
like the memory of a preempted sequence.

Tests: tests/conformance/test_prefixes.py.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, runtime_checkable

from jitney.backends.shared.prefix_files import PrefixFiles, PrefixOrigin
from jitney.backends.shared.prefix_folder import PrefixFolder
from jitney.backends.shared.prefix_place import PrefixPlace
from jitney.backends.shared.prefix_record import Piece
from jitney.backends.shared.slots import Cells, SavedCells, SlotMemory
from jitney.core.backend import Fetch, Fetched, Traits
from jitney.errors import ConfigError

_log = logging.getLogger("jitney")


def with_disk(traits: Traits) -> Traits:
    """The traits of a backend that has a disk now.

    A recurrent state is there for all of its tokens or not at all, and what a window passed is not
    saved: neither is stored.
    """
    return replace(traits, can_store=traits.can_save and traits.rewinds)


@runtime_checkable
class PrefixUser(Protocol):
    """A backend that can have a disk."""

    def use_prefixes(self, files: PrefixFiles) -> None:
        """From now on prefixes are stored here."""


def connect(backend: object, place: PrefixPlace) -> None:
    """Store the prefixes of a backend that can have a disk. Called where it was loaded."""
    if not isinstance(backend, PrefixUser):
        return
    origin = PrefixOrigin(place.model, place.shape)
    try:
        backend.use_prefixes(PrefixFiles(PrefixFolder(Path(place.folder)), origin, place.limit))
    except ConfigError as error:
        # It was well when the server started, and a backend works without a disk.
        _log.warning("Prefixes are not stored: %s", error)


@runtime_checkable
class PackingCells(Cells[SavedCells], Protocol[SavedCells]):
    """Cells whose saved copies can be written down."""

    def packed(self, saved: SavedCells) -> Sequence[Piece]:
        """A saved copy as bytes, which share its memory."""

    def unpacked(self, memory: memoryview, token_count: int) -> SavedCells | None:
        """The saved copy of so many tokens in these bytes; None if they are too many or too few."""


class PrefixDisk(Generic[SavedCells]):
    """Stores slots of one backend, and fetches what was stored."""

    def __init__(
        self,
        files: PrefixFiles,
        cells: PackingCells[SavedCells],
        memory: SlotMemory[SavedCells],
    ) -> None:
        self._files = files
        self._cells = cells
        self._memory = memory

    def store(self, slot: int, scope: str, tokens: Sequence[int], usable_count: int) -> None:
        """Write down what a slot holds, unless it is there, or one is being written."""
        if self._files.wants(scope, tokens[:usable_count]):
            memory = self._cells.packed(self._cells.save(slot))
            self._files.put(scope, tuple(tokens), usable_count, memory)

    def fetch(self, asked: Fetch) -> Fetched:
        """Look for a stored prefix, and keep it under the ticket."""
        found = self._files.find(asked)
        if found is None:
            return Fetched(asked.ticket)
        tokens = found.record.tokens
        saved = self._cells.unpacked(found.record.memory, len(tokens))
        if saved is None:
            return Fetched(asked.ticket)
        self._memory.keep(asked.ticket, tokens, saved)
        return Fetched(asked.ticket, found.length, len(tokens))
