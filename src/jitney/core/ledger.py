"""The exact count of the model's memory in blocks: what each slot holds. Shared blocks count once.

Blocks are shared only when a prefix is copied, so the blocks of all slots form a tree. A run is a
row of blocks with the same holders. A slot holds a path of runs, from the root to its tip.

        [0..16) ---- [16..20)   slot 3
           `-------- [16..31)   slot 7          31 + 4 blocks are used, not 20 + 31

Full blocks are shared. A block that is not full is copied, because both slots will write to it.
Changed by `Memory` only. Invariant 3: `recount` walks the tree and must find the same count.
"""

from collections import Counter
from collections.abc import Iterable, Iterator


class BlockRun:
    """A row of blocks, [start, end). `references` counts child runs and slots at its end."""

    __slots__ = ("end", "parent", "references", "start")

    def __init__(self, start: int, end: int, parent: "BlockRun | None", references: int) -> None:
        self.start = start
        self.end = end
        self.parent = parent
        self.references = references


class Held:
    """Blocks that some slots hold, each counted once; right until the ledger changes.

    To take a slot out costs only a look at its own runs.
    """

    def __init__(self, tips: dict[int, BlockRun], slots: Iterable[int]) -> None:
        self._tips = tips
        self._references: dict[BlockRun, int] = {}
        self.count = 0
        for slot in slots:
            self._add(slot)

    def count_with(self, slot: int) -> int:
        """The count if this slot were added."""
        count, run = self.count, self._tips.get(slot)
        while run is not None and not self._references.get(run):
            count += run.end - run.start
            run = run.parent
        return count

    def remove(self, slot: int) -> None:
        """Without this slot, which was one of them."""
        run = self._tips.get(slot)
        while run is not None:
            self._references[run] = references = self._references[run] - 1
            if references:
                return
            self.count -= run.end - run.start
            run = run.parent

    def _add(self, slot: int) -> None:
        run = self._tips.get(slot)
        while run is not None:
            self._references[run] = references = self._references.get(run, 0) + 1
            if references > 1:
                return
            self.count += run.end - run.start
            run = run.parent


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
        run: BlockRun | None = self._tips.get(source)
        while run is not None and run.start >= whole and run.start > 0:
            run = run.parent
        if whole and run is not None:
            self._tips[target] = self._cut(run, whole)
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
            assert parent is not None, "the first run starts at 0"
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

    def held(self, slots: Iterable[int]) -> Held:
        """Blocks held by any of these slots, to take slots out one by one."""
        return Held(self._tips, slots)

    def held_by(self, slots: list[int]) -> int:
        """Blocks held by any of these slots, each counted once."""
        return self.held(slots).count

    def runs(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Every run as (start, end, slots that hold it), in the order of slots."""
        holders: dict[BlockRun, list[int]] = {}
        for slot in sorted(self._tips):
            for run in self._path(slot):
                holders.setdefault(run, []).append(slot)
        return [
            (run.start, run.end, tuple(slots))
            for run, slots in holders.items()
            if run.end > run.start
        ]

    def recount(self) -> int:
        """Blocks in use, counted from scratch. Also checks the tree."""
        references = Counter(self._tips.values())
        for slot, tip in self._tips.items():
            assert tip.end == self.blocks(self._lengths[slot]), (slot, tip.end)
        runs = {run for slot in self._tips for run in self._path(slot)}
        for run in runs:
            if run.parent is not None:
                assert run.parent.end == run.start, (run.start, run.end)
                references[run.parent] += 1
        for run in runs:
            assert run.references == references[run], (run.start, run.end)
        return sum(run.end - run.start for run in runs)

    def _path(self, slot: int) -> Iterator[BlockRun]:
        """The runs of a slot, from its tip to the root."""
        run = self._tips.get(slot)
        while run is not None:
            yield run
            run = run.parent

    def _cut(self, run: BlockRun, at: int) -> BlockRun:
        """The part of the run before block `at`, as a run of its own."""
        assert run.start < at <= run.end, (run.start, at, run.end)
        if at == run.end:
            return run
        front = BlockRun(run.start, at, run.parent, 1)
        run.start = at
        run.parent = front
        return front

    def _drop(self, tip: BlockRun) -> None:
        run: BlockRun | None = tip
        while run is not None:
            run.references -= 1
            if run.references > 0:
                return
            self.used -= run.end - run.start
            run = run.parent
