"""The memory of the OpenVINO backend: which blocks each slot has, and what is in them.

Called by `backend` on the thread that runs batches. The pool chooses the blocks. This module
copies, saves and restores them, for the keys and values of every layer.

Tests: tests/conformance/test_memory.py.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from jitney.backends.shared.paging import BlockCopy, BlockPool

Bytes = npt.NDArray[np.uint8]


class PagedCells:
    """Implements `jitney.backends.shared.slots.Cells` over blocks."""

    def __init__(self, caches: Iterable[Bytes], pool: BlockPool) -> None:
        self._caches: tuple[Bytes, ...] = tuple(caches)
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

    def save(self, slot: int) -> Bytes:
        """A copy of the slot's blocks, layer after layer."""
        blocks = self._pool.blocks[slot]
        return np.concatenate([cache[blocks].ravel() for cache in self._caches])

    def restore(self, slot: int, state: Bytes, length: int) -> None:
        """Write a saved copy into blocks of the empty slot."""
        self._pool.grow(slot, length)
        blocks = self._pool.blocks[slot]
        at = 0
        for cache in self._caches:
            size = len(blocks) * cache.shape[1]
            cache[blocks] = state[at : at + size].reshape(len(blocks), -1)
            at += size
        assert at == len(state), f"Restored {at} bytes of {len(state)}"

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
