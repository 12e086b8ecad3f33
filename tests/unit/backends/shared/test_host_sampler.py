"""Choosing on the host: which row is whose, and what is kept from one entry to the next."""

import numpy as np
import pytest

from jitney.backends.fake.backend import HashCells
from jitney.backends.fake.oracle import encode_plain
from jitney.backends.shared.host_sampler import HostSampler
from jitney.backends.shared.slots import EntryRows, SlotMemory
from jitney.core.batch import (
    Discard,
    Entry,
    Fault,
    FaultKind,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Sample,
    Sampling,
    Save,
    Truncate,
)
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import InvalidRequest
from jitney.sampling.constraint import ConstraintCompiler, Matcher
from jitney.tokenizers.byte_tokenizer import byte_vocabulary

GREEDY = Sampling(seed=1, prompt_count=2)
SCORED = Sampling(seed=1, prompt_count=4, prompt_logprobs=1)
LOGITS = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9]], np.float32)


class Refusing(ConstraintCompiler):
    """Compiles nothing."""

    def compile(self, constraint: Constraint) -> Matcher:
        raise InvalidRequest("it is refused.", "structured_outputs")


class Slots:
    """Slots that were opened, and what is chosen for them."""

    def __init__(self, *samplings: Sampling) -> None:
        self._cells = HashCells(8, 64, 1)
        self.memory = SlotMemory(self._cells, 8)
        vocabulary = byte_vocabulary()
        self._sampler = HostSampler(Refusing(vocabulary, encode_plain), self.memory)
        self.operate(*(Open(slot, each) for slot, each in enumerate(samplings)))

    def operate(self, *operations: MemoryOperation) -> None:
        """Carry operations out as a backend does."""
        self._sampler.operate(operations)

    def sample(self, *rows: tuple[int, range]) -> list[Sample]:
        """The samples of entries of two tokens: their slots and rows."""
        fed = []
        for slot, own in rows:
            contents = self.memory.contents(slot)
            self._cells.append(slot, (0, 1), 0)
            contents.tokens += (0, 1)
            scored = own if contents.sampling is SCORED else range(0)
            fed.append(EntryRows(0, Entry(slot, 0, (0, 1), True), contents, (0, 1), own, scored))
        return self._sampler.sample(fed, LOGITS)

    def token_last(self, slot: int) -> int | None:
        """What the slot continues from."""
        return self.memory.contents(slot).token_last

    def row_place(self, slot: int) -> int | None:
        """The position that the kept row of a slot predicts."""
        row = self.memory.contents(slot).row_last
        return None if row is None else row.position


def test_rows_are_read_by_their_index_and_answered_in_order() -> None:
    """Guards the mapping of entries to rows: prompts have rows that nobody wants."""
    slots = Slots(GREEDY, GREEDY)
    samples = slots.sample((1, range(1, 3)), (0, range(1)))
    assert [sample.token for sample in samples] == [2, 0]
    assert (slots.token_last(1), slots.token_last(0)) == (2, 0)


@pytest.mark.parametrize("operation", [Truncate(0, 1), Release(0), Open(0, GREEDY)])
def test_a_token_that_no_longer_follows_is_not_continued_from(operation: MemoryOperation) -> None:
    """Guards against a token of what the slot held before."""
    slots = Slots(GREEDY)
    slots.sample((0, range(1)))
    slots.operate(operation)
    assert slots.token_last(0) is None


def test_a_row_that_a_prompt_needs_next_is_saved_and_restored_with_its_slot() -> None:
    """Guards logprobs of a prompt that is preempted in the middle."""
    slots = Slots(SCORED)
    slots.sample((0, range(2)))
    assert slots.row_place(0) == 2
    slots.operate(Save(0, 7), Release(0), Restore(7, 3), Open(3, SCORED))
    assert (slots.row_place(0), slots.row_place(3)) == (None, 2)
    slots.operate(Save(3, 8), Discard(8))
    assert not slots.memory.tickets


def test_a_constraint_that_is_refused_is_a_fault_of_its_slot() -> None:
    """Guards the others in the batch, and whoever continues behind the fault."""
    constraint = Constraint(ConstraintKind.REGEX, "x")
    slots = Slots(Sampling(seed=1, prompt_count=2, constraint=constraint), GREEDY)
    samples = slots.sample((0, range(1)), (1, range(1, 2)))
    fault = Fault("it is refused.", FaultKind.REQUEST)
    assert [sample.fault for sample in samples] == [fault, None]
    assert slots.token_last(0) == 1, "any token will do"


def test_reset_forgets_all() -> None:
    """Guards a backend that goes on after a failed batch."""
    slots = Slots(SCORED)
    slots.sample((0, range(2)))
    slots.memory.reset()
    assert (slots.token_last(0), slots.row_place(0)) == (None, None)
