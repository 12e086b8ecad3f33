"""Memory in blocks: which blocks each slot has, and how many slots share a block.

Called by backends that page their memory, on the thread that runs batches. The pool only counts.
Where a block must be copied before it is written, it returns a `BlockCopy`, and the backend copies.
Whole blocks are shared and a partial one is copied, as `jitney.core.ledger` counts them.
"""

from dataclasses import dataclass, field

from jitney.errors import BackendFailed


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The backend must copy the block `source` to `target`."""

    source: int
    target: int


@dataclass(slots=True)
class BlockTable:
    """The blocks of one slot in the order of positions; the last one may be partly filled."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    """Tokens held."""


class BlockPool:
    """A fixed number of blocks with reference counts."""

    def __init__(self, blocks_max: int, block_tokens: int) -> None:
        assert blocks_max > 0, f"{blocks_max} blocks"
        assert block_tokens > 0, f"blocks of {block_tokens} tokens"
        self._blocks_max = blocks_max
        self._block_tokens = block_tokens
        self.reset()

    def reset(self) -> None:
        """Free all blocks. Tables from before are invalid."""
        self._free = list(range(self._blocks_max))
        self._holders = [0] * self._blocks_max

    @property
    def used_tokens(self) -> int:
        """Tokens of memory taken, in whole blocks; shared blocks count once."""
        return (self._blocks_max - len(self._free)) * self._block_tokens

    def grow(self, table: BlockTable, count: int) -> BlockCopy | None:
        """Take room for `count` more tokens. Raises BackendFailed when memory is full.

        After a truncation the last block may be shared and partly unused. It will be written, so it
        is copied first.
        """
        blocks, length = table.blocks, table.length
        copy = None
        if length % self._block_tokens and self._holders[blocks[-1]] > 1:
            copy = BlockCopy(blocks[-1], self._take(1)[0])
            self._drop(copy.source)
            blocks[-1] = copy.target
        wanted = -(-(length + count) // self._block_tokens) - len(blocks)
        if wanted > 0:
            blocks += self._take(wanted)
        table.length = length + count
        return copy

    def share(self, source: BlockTable, target: BlockTable, length: int) -> BlockCopy | None:
        """The empty `target` shares the first `length` tokens of `source`."""
        assert not target.blocks, f"A table of {len(target.blocks)} blocks is not empty"
        assert 0 < length <= source.length, f"{length} tokens of {source.length}"
        whole = length // self._block_tokens
        copy = None
        if length % self._block_tokens:
            copy = BlockCopy(source.blocks[whole], self._take(1)[0])
        target.blocks = source.blocks[:whole]
        for block in target.blocks:
            self._holders[block] += 1
        if copy is not None:
            target.blocks.append(copy.target)
        target.length = length
        return copy

    def shrink(self, table: BlockTable, length: int) -> None:
        """Remove the tokens from `length` on from the table."""
        assert 0 <= length <= table.length, f"{length} tokens of {table.length}"
        kept = -(-length // self._block_tokens)
        for block in table.blocks[kept:]:
            self._drop(block)
        del table.blocks[kept:]
        table.length = length

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

    def _drop(self, block: int) -> None:
        assert self._holders[block] > 0, f"Block {block} is dropped, and nobody holds it"
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._free.append(block)
