"""Choosing on the host: which row is whose, and what is kept from one entry to the next."""

import numpy as np
import pytest

from jitney.backends.shared.host_sampler import HostSampler
from jitney.backends.shared.slots import EntryRows, SlotContents
from jitney.core.batch import (
    Discard,
    Entry,
    Fault,
    FaultKind,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Sampling,
    Save,
    Truncate,
)
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import InvalidRequest
from jitney.sampling.sampler import TokenMatcher

GREEDY = Sampling(seed=1, prompt_count=2)
SCORED = Sampling(seed=1, prompt_count=4, prompt_logprobs=1)
LOGITS = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9]], np.float32)


def refuse(constraint: Constraint) -> TokenMatcher:
    raise InvalidRequest("it is refused.", "structured_outputs")


def sampler(*operations: MemoryOperation) -> HostSampler:
    made = HostSampler(refuse)
    for operation in operations:
        made.operate(operation)
    return made


def fed(slot: int, rows: range, *, index: int = 0, scored: range = range(0)) -> EntryRows:
    """An entry of two tokens whose slot holds them, and nothing before them."""
    entry = Entry(slot, 0, (0, 1), wants_token=True)
    contents = SlotContents([0, 1], SCORED if scored else GREEDY)
    return EntryRows(index, entry, contents, (0, 1), rows, scored)


def test_rows_are_read_by_their_index_and_answered_in_order() -> None:
    """Guards the mapping of entries to rows: prompts have rows that nobody wants."""
    one = sampler(Open(0, GREEDY), Open(1, GREEDY))
    samples = one.sample([fed(1, range(1, 3)), fed(0, range(1))], LOGITS)
    assert [sample.token for sample in samples] == [2, 0]
    assert (one.choices[1].token_last, one.choices[0].token_last) == (2, 0)


@pytest.mark.parametrize("operation", [Truncate(0, 1), Release(0), Open(0, GREEDY)])
def test_a_token_that_no_longer_follows_is_not_continued_from(operation: MemoryOperation) -> None:
    """Guards against a token of what the slot held before."""
    one = sampler(Open(0, GREEDY))
    one.sample([fed(0, range(1))], LOGITS)
    one.operate(operation)
    assert one.choices[0].token_last is None


def test_a_row_that_a_prompt_needs_next_is_saved_and_restored_with_its_slot() -> None:
    """Guards logprobs of a prompt that is preempted in the middle."""
    one = sampler(Open(0, SCORED))
    one.sample([fed(0, range(2), scored=range(2))], LOGITS)
    assert one.has_row_before(0, 2)
    for operation in (Save(0, 7), Release(0), Restore(7, 3), Open(3, SCORED)):
        one.operate(operation)
    assert not one.has_row_before(0, 2)
    assert one.has_row_before(3, 2)
    assert not one.has_row_before(3, 3)
    one.operate(Save(3, 8))
    one.operate(Discard(8))


def test_a_constraint_that_is_refused_is_a_fault_of_its_slot() -> None:
    """Guards the others in the batch, and whoever continues behind the fault."""
    constraint = Constraint(ConstraintKind.REGEX, "x")
    bad = Sampling(seed=1, prompt_count=2, constraint=constraint)
    one = sampler(Open(0, bad), Open(1, GREEDY))
    samples = one.sample([fed(0, range(1)), fed(1, range(1, 2))], LOGITS)
    fault = Fault("it is refused.", FaultKind.REQUEST)
    assert [sample.fault for sample in samples] == [fault, None]
    assert one.choices[0].token_last == 1, "any token will do"


def test_reset_forgets_all() -> None:
    """Guards a backend that goes on after a failed batch."""
    one = sampler(Open(0, SCORED))
    one.sample([fed(0, range(2), scored=range(2))], LOGITS)
    one.reset()
    assert one.choices[0].token_last is None
    assert not one.has_row_before(0, 2)
