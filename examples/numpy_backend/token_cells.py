"""The memory of the example: keys and values of all tokens, in one array.

A slot is a list of places in the array, one for each token, so equal beginnings share theirs.
Called by `backend` on the thread that runs batches.
"""

import numpy as np

from examples.numpy_backend.llama import Floats, TokenShape
from jitney.backends.shared.paging import BlockPool


class TokenCells:
    """Implements `jitney.backends.shared.slots.Cells` over blocks of one token.

    Such a block is never partly filled, so the pool never asks for one to be copied.
    """

    def __init__(self, slots: int, kv_tokens: int, shape: TokenShape) -> None:
        self._pool = BlockPool(slots, kv_tokens, block_tokens=1)
        # Memory that is never written to is never taken from the system.
        sizes = (shape.layers, 2, kv_tokens, shape.heads, shape.head)
        self.kv = np.zeros(sizes, np.float32)
        self.token_bytes = self.kv.nbytes // kv_tokens

    def grow(self, slot: int, count: int) -> list[int]:
        """The places of a slot, with `count` more. Raises BackendFailed when memory is full."""
        self._pool.grow(slot, count)
        return self._pool.blocks[slot]

    def copy(self, source: int, target: int, length: int) -> None:
        """The first tokens of one slot are those of another, empty one as well."""
        self._pool.share(source, target, length)

    def truncate(self, slot: int, length: int) -> None:
        """Forget positions from `length` on."""
        self._pool.shrink(slot, length)

    def save(self, slot: int) -> Floats:
        """A copy of the slot's keys and values."""
        return self.kv[:, :, self._pool.blocks[slot]]

    def restore(self, slot: int, saved: Floats, length: int) -> None:
        """Write a saved copy into an empty slot."""
        self.kv[:, :, self.grow(slot, length)] = saved

    def clear(self) -> None:
        """Empty every slot."""
        self._pool.reset()
