"""The ledger against a model that gives every block a number and counts sets of them."""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jitney.core.ledger import Ledger

SLOTS = 5
LENGTH_MAX = 40


class LedgerMachine(RuleBasedStateMachine):
    """Guards invariant 3: a block too many and memory is lost, one too few and it overflows."""

    @initialize(block=st.sampled_from((1, 3, 4, 16)))
    def start(self, block: int) -> None:
        self.block = block
        self.ledger = Ledger(1000, block)
        self.blocks: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.fresh = count()

    def wanted(self, length: int) -> int:
        return -(-length // self.block)

    @rule(slot=st.integers(0, SLOTS - 1), more=st.integers(0, LENGTH_MAX))
    def grow(self, slot: int, more: int) -> None:
        length = self.lengths.get(slot, 0) + more
        held = self.blocks.setdefault(slot, [])
        missing = self.wanted(length) - len(held)
        assert self.ledger.growth(slot, length) == missing
        self.ledger.grow(slot, length)
        held += [next(self.fresh) for _ in range(missing)]
        self.lengths[slot] = length

    @precondition(lambda self: self.lengths and len(self.lengths) < SLOTS)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.lengths)))
        target = data.draw(st.sampled_from(sorted(set(range(SLOTS)) - set(self.lengths))))
        length = data.draw(st.integers(0, self.lengths[source]))
        self.ledger.copy(source, target, length)
        self.blocks[target] = self.blocks[source][: length // self.block]
        if length % self.block:
            self.blocks[target].append(next(self.fresh))
        self.lengths[target] = length

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.lengths)))
        length = data.draw(st.integers(0, self.lengths[slot]))
        self.ledger.shrink(slot, length)
        del self.blocks[slot][self.wanted(length) :]
        self.lengths[slot] = length

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.lengths)))
        self.ledger.release(slot)
        del self.blocks[slot], self.lengths[slot]

    @invariant()
    def counts_agree(self) -> None:
        everything = {block for held in self.blocks.values() for block in held}
        assert self.ledger.used == self.ledger.recount() == len(everything)
        assert self.ledger.free == 1000 - len(everything)
        for slot in range(SLOTS):
            assert self.ledger.length(slot) == self.lengths.get(slot, 0)
        some = [slot for slot in self.blocks if slot % 2]
        assert self.ledger.held_by(some) == len({b for slot in some for b in self.blocks[slot]})

    @invariant()
    def runs_name_their_holders(self) -> None:
        for start, end, slots in self.ledger.runs():
            (held,) = {tuple(self.blocks[slot][start:end]) for slot in slots}
            assert len(held) == end - start
            others = [self.blocks[slot] for slot in self.blocks if slot not in slots]
            assert all(block not in other for other in others for block in held)


LedgerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, database=None
)
TestLedger = LedgerMachine.TestCase
