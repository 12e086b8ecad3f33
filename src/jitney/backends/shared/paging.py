"""Memory in blocks: which blocks each slot has, and how many slots share a block.

Called by backends that page their memory, on the thread that runs batches. The pool only counts.
Where a block must be copied before it is written, it returns a `BlockCopy`, and the backend copies.
Whole blocks are shared and a partial one is copied, as `jitney.core.ledger` counts them.
"""

from dataclasses import dataclass

from jitney.errors import BackendFailed


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The backend must copy the block `source` to `target`."""

    source: int
    target: int


class BlockPool:
    """A fixed number of blocks with reference counts, and the blocks of each slot."""

    def __init__(self, slots: int, blocks_max: int, block_tokens: int) -> None:
        assert blocks_max > 0, f"{blocks_max} blocks"
        assert block_tokens > 0, f"blocks of {block_tokens} tokens"
        self._slots = slots
        self._blocks_max = blocks_max
        self._block_tokens = block_tokens
        self.reset()

    def reset(self) -> None:
        """Empty every slot, and free all blocks."""
        self._free = list(range(self._blocks_max))
        self._holders = [0] * self._blocks_max
        self.blocks: list[list[int]] = [[] for _ in range(self._slots)]
        """The blocks of each slot, by position; the last one may be partly filled."""
        self.lengths = [0] * self._slots
        """The tokens of each slot."""

    @property
    def used_tokens(self) -> int:
        """Tokens of memory taken, in whole blocks; shared blocks count once."""
        return (self._blocks_max - len(self._free)) * self._block_tokens

    def blocks_of(self, token_count: int) -> int:
        """Blocks of so many tokens."""
        return -(-token_count // self._block_tokens)

    def grow(self, slot: int, count: int) -> BlockCopy | None:
        """Take room for `count` more tokens of a slot. Raises BackendFailed when memory is full.

        After a truncation the last block may be shared and partly unused. It will be written, so it
        is copied first.
        """
        blocks, length = self.blocks[slot], self.lengths[slot]
        copy = None
        if count == 1 and not length % self._block_tokens and self._free:
            block = self._free.pop()  # so it is for most tokens
            self._holders[block] = 1
            blocks.append(block)
            self.lengths[slot] = length + 1
            return None
        if length % self._block_tokens and self._holders[blocks[-1]] > 1:
            copy = BlockCopy(blocks[-1], self._take(1)[0])
            self._drop([copy.source])
            blocks[-1] = copy.target
        missing = -(-(length + count) // self._block_tokens) - len(blocks)
        if missing > 0:
            blocks += self._take(missing)
        self.lengths[slot] = length + count
        return copy

    def share(self, source: int, target: int, length: int) -> BlockCopy | None:
        """The empty slot `target` shares the first `length` tokens of `source`."""
        held = self.lengths[source]
        assert not self.blocks[target], f"A slot of {len(self.blocks[target])} blocks is not empty"
        assert 0 < length <= held, f"{length} tokens of {held}"
        whole = length // self._block_tokens
        copy = None
        if length % self._block_tokens:
            copy = BlockCopy(self.blocks[source][whole], self._take(1)[0])
        shared = self.blocks[source][:whole]
        for block in shared:
            self._holders[block] += 1
        self.blocks[target] = shared if copy is None else [*shared, copy.target]
        self.lengths[target] = length
        return copy

    def shrink(self, slot: int, length: int) -> None:
        """Remove the tokens from `length` on from a slot."""
        blocks, held = self.blocks[slot], self.lengths[slot]
        assert 0 <= length <= held, f"{length} tokens of {held}"
        first = -(-length // self._block_tokens)
        self._drop(blocks[first:])
        del blocks[first:]
        self.lengths[slot] = length

    def _take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise BackendFailed(
                f"Memory is full: {count * self._block_tokens} tokens more were wanted, with "
                f"{self.used_tokens} of {self._blocks_max * self._block_tokens} in use."
            )
        taken = self._free[-count:]
        del self._free[-count:]
        for block in taken:
            self._holders[block] = 1
        return taken

    def _drop(self, blocks: list[int]) -> None:
        holders, free = self._holders, self._free
        for block in blocks:
            assert holders[block] > 0, f"Block {block} is dropped, and nobody holds it"
            holders[block] -= 1
            if holders[block] == 0:
                free.append(block)
