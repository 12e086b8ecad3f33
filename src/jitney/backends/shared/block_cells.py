"""`BlockCells`: keys and values in blocks, for every layer, as arrays of numpy or of torch.

Called by backends that page their memory, on the thread that runs batches. The pool chooses the
blocks. This module copies, saves and restores them.

Tests: tests/conformance/test_memory.py.
"""

from collections.abc import Iterable
from typing import Any  # Any: an array of numpy or of torch

import numpy as np

from jitney.backends.shared.paging import BlockCopy, BlockPool


class BlockCells:
    """Implements `jitney.backends.shared.slots.Cells` over blocks."""

    def __init__(self, caches: Iterable[Any], pool: BlockPool) -> None:
        self._caches = tuple(caches)  # each with the blocks as its first dimension
        self._pool = pool

    def blocks(self, slot: int) -> list[int]:
        """The blocks of a slot in the order of positions."""
        return self._pool.blocks[slot]

    def grow(self, slot: int, count: int) -> None:
        """Take room for `count` more tokens of a slot. Raises BackendFailed when memory is full."""
        self._carry_out(self._pool.grow(slot, count))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first tokens of one slot to another; whole blocks are shared."""
        self._carry_out(self._pool.share(source, target, length))

    def truncate(self, slot: int, length: int) -> None:
        """Forget positions from `length` on."""
        self._pool.shrink(slot, length)

    def save(self, slot: int) -> list[Any]:
        """A copy of the slot's blocks, layer after layer."""
        blocks = self._pool.blocks[slot]
        return [cache[blocks] for cache in self._caches]

    def restore(self, slot: int, state: list[Any], length: int) -> None:
        """Write a saved copy into blocks of the empty slot."""
        self._pool.grow(slot, length)
        blocks = self._pool.blocks[slot]
        for cache, saved in zip(self._caches, state, strict=True):
            cache[blocks] = saved

    def packed(self, saved: list[Any]) -> list[memoryview]:
        """A saved copy as bytes. Of numpy only, with bytes for numbers."""
        return [memoryview(each).cast("B") for each in saved]

    def unpacked(self, memory: memoryview, token_count: int) -> list[Any] | None:
        """The saved copy of so many tokens in these bytes, if it fits."""
        blocks = self._pool.blocks_of(token_count)
        if memory.nbytes != blocks * sum(cache.shape[1] for cache in self._caches):
            return None
        saved, start = list[Any](), 0
        for cache in self._caches:
            end = start + blocks * cache.shape[1]
            saved.append(np.frombuffer(memory[start:end], np.uint8).reshape(blocks, -1))
            start = end
        return saved

    def clear(self) -> None:
        """Empty every slot."""
        self._pool.reset()

    def drop(self) -> None:
        """Release the memory. Nobody may read or write it after this."""
        self._caches = ()

    def _carry_out(self, copy: BlockCopy | None) -> None:
        if copy is not None:
            for cache in self._caches:
                cache[copy.target] = cache[copy.source]
