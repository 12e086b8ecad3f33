"""The cells of the fake backend: hashes in place of keys and values.

Called by `jitney.backends.fake.backend` on the thread that runs batches.
`jitney.backends.shared.paging` counts blocks, as for a backend with real ones.

Tests: tests/unit/backends/fake/test_backend.py.
"""

from collections.abc import Sequence

from jitney.backends.fake.oracle import HASH_OF_NOTHING, mix64
from jitney.backends.shared.paging import BlockPool, BlockTable


class HashCells:
    """Implements `jitney.backends.shared.slots.Cells`."""

    def __init__(self, slots: int, kv_tokens: int, block_tokens: int) -> None:
        self._slots = slots
        self.pool = BlockPool(kv_tokens // block_tokens, block_tokens)
        self.clear()

    def clear(self) -> None:
        """Empty every slot."""
        self.pool.reset()
        self._tables = [BlockTable() for _ in range(self._slots)]
        self.hashes = [[HASH_OF_NOTHING] for _ in range(self._slots)]
        """For each slot: element `i` is the hash of its first `i` tokens."""

    def append(self, slot: int, tokens: Sequence[int], rounding: int) -> int:
        """Write tokens after those that the slot holds, and take blocks for them; the new hash."""
        self.pool.grow(self._tables[slot], len(tokens))
        hashes = self.hashes[slot]
        rolling = hashes[-1]
        for token in tokens:
            rolling = mix64(rolling, token + rounding)
            hashes.append(rolling)
        return rolling

    def copy(self, source: int, target: int, length: int) -> bool:
        """Copy the first tokens of one slot to an empty one."""
        self.pool.share(self._tables[source], self._tables[target], length)
        self.hashes[target] = self.hashes[source][: length + 1]
        return True

    def truncate(self, slot: int, length: int) -> bool:
        """Forget positions from `length` on."""
        self.pool.shrink(self._tables[slot], length)
        del self.hashes[slot][length + 1 :]
        return True

    def save(self, slot: int) -> list[int]:
        """A copy of the slot's hashes."""
        return self.hashes[slot].copy()

    def restore(self, slot: int, saved: list[int], length: int) -> bool:
        """Write saved hashes into an empty slot."""
        self.pool.grow(self._tables[slot], length)
        self.hashes[slot] = saved
        return True
