"""The pool of blocks against the scheduler's own count, and against what tokens should hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jitney.backends.shared.paging import BlockCopy, BlockPool
from jitney.core.ledger import Ledger
from jitney.errors import BackendFailed

SIZE = 4
BLOCKS = 24
SLOTS = 6

slots = st.integers(0, SLOTS - 1)
fractions = st.floats(0, 1)


class PagedMemory(RuleBasedStateMachine):
    """Slots grow, share and shrink as the scheduler lets them, in the pool and in the ledger.

    The memory itself is played by `cells`: what each block holds. A slot reads back what it wrote
    or what was shared with it, whatever the others did in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(SLOTS, BLOCKS, SIZE)
        self.ledger = Ledger(BLOCKS, SIZE)
        self.cells = [[0] * SIZE for _ in range(BLOCKS)]
        self.held: list[list[int]] = [[] for _ in range(SLOTS)]
        self.written = 0

    def carry_out(self, copy: BlockCopy | None) -> None:
        if copy is not None:
            self.cells[copy.target] = list(self.cells[copy.source])

    def is_cut_inside_a_shared_block(self, slot: int) -> bool:
        """Whether growth would copy a block: the scheduler cuts shared memory at blocks' edges."""
        blocks = self.pool.blocks
        return bool(self.pool.lengths[slot] % SIZE) and any(
            other != slot and blocks[slot][-1] in blocks[other] for other in range(SLOTS)
        )

    @rule(slot=slots, count=st.integers(1, 3 * SIZE))
    def grow(self, slot: int, count: int) -> None:
        if self.is_cut_inside_a_shared_block(slot):
            return
        length = self.pool.lengths[slot] + count
        if self.ledger.growth(slot, length) > self.ledger.free:
            try:
                self.pool.grow(slot, count)
            except BackendFailed:
                return
            raise AssertionError("there was room that the ledger does not know of")
        self.carry_out(self.pool.grow(slot, count))
        self.ledger.grow(slot, length)
        for position in range(length - count, length):
            self.written += 1
            self.held[slot].append(self.written)
            self.cells[self.pool.blocks[slot][position // SIZE]][position % SIZE] = self.written

    @rule(source=slots, taker=slots, fraction=fractions)
    def share(self, source: int, taker: int, fraction: float) -> None:
        lengths = self.pool.lengths
        length = max(1, round(lengths[source] * fraction))
        if lengths[taker] or not lengths[source]:
            return
        if self.ledger.free < bool(length % SIZE):
            return
        self.carry_out(self.pool.share(source, taker, length))
        self.ledger.copy(source, taker, length)
        self.held[taker] = self.held[source][:length]

    @rule(slot=slots, fraction=fractions)
    def shrink(self, slot: int, fraction: float) -> None:
        length = int(self.pool.lengths[slot] * fraction)
        self.pool.shrink(slot, length)
        self.ledger.shrink(slot, length)
        del self.held[slot][length:]

    @rule(slot=slots)
    def release(self, slot: int) -> None:
        self.pool.shrink(slot, 0)
        self.ledger.release(slot)
        self.held[slot] = []

    @precondition(lambda self: self.ledger.used)
    @rule()
    def release_all(self) -> None:
        for slot in range(SLOTS):
            self.release(slot)
        assert self.pool.used_tokens == self.ledger.used == 0

    @invariant()
    def as_many_blocks_are_used_as_the_scheduler_counts(self) -> None:
        assert self.pool.used_tokens == self.ledger.used * SIZE

    @invariant()
    def used_blocks_are_those_of_the_slots(self) -> None:
        for blocks, length in zip(self.pool.blocks, self.pool.lengths, strict=True):
            assert len(set(blocks)) == len(blocks) == -(-length // SIZE)
        used = {block for blocks in self.pool.blocks for block in blocks}
        assert len(used) * SIZE == self.pool.used_tokens

    @invariant()
    def every_slot_reads_what_it_should_hold(self) -> None:
        for slot, held in enumerate(self.held):
            read = [cell for block in self.pool.blocks[slot] for cell in self.cells[block]]
            assert read[: self.pool.lengths[slot]] == held


PagedMemory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPagedMemory = PagedMemory.TestCase
