"""The exact count of the model's memory in blocks: what each slot holds. Shared blocks count once.

Blocks are shared only when a prefix is copied, so the blocks of all slots form a tree. A segment
is a run of blocks with the same holders. A slot holds a path of segments, from the root to its tip.

        [0..16) ---- [16..20)   slot 3
           `-------- [16..31)   slot 7          31 + 4 blocks are used, not 20 + 31

Full blocks are shared. A block that is not full is copied, because both slots will write to it.
Called by `Memory` only. Invariant 3: `recount` walks the tree and must find the same count.
"""

from collections import Counter
from collections.abc import Iterator


class BlockRun:
    """A run of blocks, [start, end). `references` counts child segments and slots at its end."""

    __slots__ = ("end", "parent", "references", "start")

    def __init__(self, start: int, end: int, parent: "BlockRun | None", references: int) -> None:
        self.start = start
        self.end = end
        self.parent = parent
        self.references = references


class Ledger:
    """Block counts for every slot. Only `grow` looks whether there is room; for the rest its caller
    does."""

    def __init__(self, capacity_blocks: int, block_tokens: int) -> None:
        assert capacity_blocks > 0, capacity_blocks
        assert block_tokens > 0, block_tokens
        self.capacity = capacity_blocks
        self.block_tokens = block_tokens
        self.used = 0
        self._tips: dict[int, BlockRun] = {}
        self._lengths: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self.capacity - self.used

    def length(self, slot: int) -> int:
        """Tokens that the slot holds."""
        return self._lengths.get(slot, 0)

    def blocks(self, token_count: int) -> int:
        """Blocks of so many tokens when nothing is shared."""
        return -(-token_count // self.block_tokens)

    def growth(self, slot: int, length: int) -> int:
        """Blocks that the slot needs to grow to `length` tokens."""
        tip = self._tips.get(slot)
        need = -(-length // self.block_tokens) - (0 if tip is None else tip.end)
        return need if need > 0 else 0

    def grow(self, slot: int, length: int) -> bool:
        """The slot now holds `length` tokens; false, and no change, if too few blocks are free."""
        assert length >= self._lengths.get(slot, 0), (slot, length, self.length(slot))
        tip = self._tips.get(slot)
        held = 0 if tip is None else tip.end
        missing = -(-length // self.block_tokens) - held
        if missing > 0:
            if self.used + missing > self.capacity:
                return False
            if tip is None or tip.references > 1:
                tip = self._tips[slot] = BlockRun(held, held, tip, 1)
            self.used += missing
            tip.end += missing
        self._lengths[slot] = length
        return True

    def copy(self, source: int, target: int, length: int) -> None:
        """The empty slot `target` gets the first `length` tokens of `source`."""
        assert target not in self._tips, target
        assert length <= self.length(source), (source, length)
        whole = length // self.block_tokens
        segment: BlockRun | None = self._tips.get(source)
        while segment is not None and segment.start >= whole and segment.start > 0:
            segment = segment.parent
        if whole and segment is not None:
            self._tips[target] = self._cut(segment, whole)
            self._tips[target].references += 1
        self._lengths[target] = whole * self.block_tokens
        has_room = self.grow(target, length)
        assert has_room, "its caller made room for the block that is not full"

    def shrink(self, slot: int, length: int) -> None:
        """The slot forgets its tokens from `length` on."""
        assert length <= self.length(slot), (slot, length)
        need = self.blocks(length)
        tip = self._tips.get(slot)
        if tip is None:
            return
        if need == 0:
            self.release(slot)
            return
        while tip.start >= need:
            parent = tip.parent
            assert parent is not None, "the first segment starts at 0"
            parent.references += 1
            self._drop(tip)
            tip = parent
        if tip.end > need:
            rest = tip
            tip = self._cut(rest, need)
            tip.references += 1
            self._drop(rest)
        self._tips[slot] = tip
        self._lengths[slot] = length

    def release(self, slot: int) -> None:
        """The slot now holds nothing."""
        self._lengths.pop(slot, None)
        tip = self._tips.pop(slot, None)
        if tip is not None:
            self._drop(tip)

    def held_by(self, slots: list[int]) -> int:
        """Blocks held by any of these slots, each counted once."""
        seen: set[BlockRun] = set()
        count = 0
        for slot in slots:
            segment = self._tips.get(slot)
            while segment is not None and segment not in seen:
                seen.add(segment)
                count += segment.end - segment.start
                segment = segment.parent
        return count

    def segments(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Every segment as (start, end, slots that hold it), in the order of slots."""
        holders: dict[BlockRun, list[int]] = {}
        for slot in sorted(self._tips):
            for segment in self._path(slot):
                holders.setdefault(segment, []).append(slot)
        return [
            (segment.start, segment.end, tuple(slots))
            for segment, slots in holders.items()
            if segment.end > segment.start
        ]

    def recount(self) -> int:
        """Blocks in use, counted from scratch. Also checks the tree."""
        references = Counter(self._tips.values())
        for slot, tip in self._tips.items():
            assert tip.end == self.blocks(self._lengths[slot]), (slot, tip.end)
        segments = {segment for slot in self._tips for segment in self._path(slot)}
        for segment in segments:
            if segment.parent is not None:
                assert segment.parent.end == segment.start, (segment.start, segment.end)
                references[segment.parent] += 1
        for segment in segments:
            assert segment.references == references[segment], (segment.start, segment.end)
        return sum(segment.end - segment.start for segment in segments)

    def _path(self, slot: int) -> Iterator[BlockRun]:
        """The segments of a slot, from its tip to the root."""
        segment = self._tips.get(slot)
        while segment is not None:
            yield segment
            segment = segment.parent

    def _cut(self, segment: BlockRun, at: int) -> BlockRun:
        """The part of the segment before block `at`, as a segment of its own."""
        assert segment.start < at <= segment.end, (segment.start, at, segment.end)
        if at == segment.end:
            return segment
        front = BlockRun(segment.start, at, segment.parent, 1)
        segment.start = at
        segment.parent = front
        return front

    def _drop(self, tip: BlockRun) -> None:
        segment: BlockRun | None = tip
        while segment is not None:
            segment.references -= 1
            if segment.references > 0:
                return
            self.used -= segment.end - segment.start
            segment = segment.parent
