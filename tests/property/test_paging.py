"""The pool of blocks against the scheduler's own count, and against what tokens should hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jitney.backends.shared.paging import BlockCopy, BlockPool, BlockTable
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
        self.pool = BlockPool(BLOCKS, SIZE)
        self.ledger = Ledger(BLOCKS, SIZE)
        self.tables = [BlockTable() for _ in range(SLOTS)]
        self.cells = [[0] * SIZE for _ in range(BLOCKS)]
        self.held: list[list[int]] = [[] for _ in range(SLOTS)]
        self.written = 0

    def carry_out(self, copy: BlockCopy | None) -> None:
        if copy is not None:
            self.cells[copy.target] = list(self.cells[copy.source])

    def is_cut_inside_a_shared_block(self, slot: int) -> bool:
        """Whether growth would copy a block: the scheduler cuts shared memory at blocks' edges."""
        table = self.tables[slot]
        return bool(table.length % SIZE) and any(
            other is not table and table.blocks[-1] in other.blocks for other in self.tables
        )

    @rule(slot=slots, count=st.integers(1, 3 * SIZE))
    def grow(self, slot: int, count: int) -> None:
        table = self.tables[slot]
        if self.is_cut_inside_a_shared_block(slot):
            return
        length = table.length + count
        if self.ledger.growth(slot, length) > self.ledger.free:
            try:
                self.pool.grow(table, count)
            except BackendFailed:
                return
            raise AssertionError("there was room that the ledger does not know of")
        self.carry_out(self.pool.grow(table, count))
        self.ledger.grow(slot, length)
        for position in range(length - count, length):
            self.written += 1
            self.held[slot].append(self.written)
            self.cells[table.blocks[position // SIZE]][position % SIZE] = self.written

    @rule(source=slots, taker=slots, fraction=fractions)
    def share(self, source: int, taker: int, fraction: float) -> None:
        length = max(1, round(self.tables[source].length * fraction))
        if self.tables[taker].length or not self.tables[source].length:
            return
        if self.ledger.free < bool(length % SIZE):
            return
        self.carry_out(self.pool.share(self.tables[source], self.tables[taker], length))
        self.ledger.copy(source, taker, length)
        self.held[taker] = self.held[source][:length]

    @rule(slot=slots, fraction=fractions)
    def shrink(self, slot: int, fraction: float) -> None:
        length = int(self.tables[slot].length * fraction)
        self.pool.shrink(self.tables[slot], length)
        self.ledger.shrink(slot, length)
        del self.held[slot][length:]

    @rule(slot=slots)
    def release(self, slot: int) -> None:
        self.pool.shrink(self.tables[slot], 0)
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
    def used_blocks_are_those_that_stand_in_tables(self) -> None:
        for table in self.tables:
            assert len(set(table.blocks)) == len(table.blocks) == -(-table.length // SIZE)
        used = {block for table in self.tables for block in table.blocks}
        assert len(used) * SIZE == self.pool.used_tokens

    @invariant()
    def every_slot_reads_what_it_should_hold(self) -> None:
        for table, held in zip(self.tables, self.held, strict=True):
            read = [cell for block in table.blocks for cell in self.cells[block]]
            assert read[: table.length] == held


PagedMemory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPagedMemory = PagedMemory.TestCase
