"""How entries are laid out for a model.

What is checked of every entry is held by `tests/unit/backends/fake/test_backend.py` and by the
conformance suite.
"""

import pytest

from jitney.backends.fake.backend import HashCells
from jitney.backends.shared.layout import BatchLayout
from jitney.backends.shared.slots import EntryRows, SlotMemory
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.errors import BackendFailed

PROMPT = (5, 6, 7)


def feed(memory: SlotMemory[list[int]], *entries: Entry) -> list[EntryRows]:
    """Lay entries out."""
    layout = BatchLayout(
        memory,
        max_num_batched_tokens=16,
        slot_tokens_max=8,
        vocabulary_count=100,
    )
    return layout.lay_out(Batch(1, (), entries), by_slot=True)


@pytest.fixture
def memory() -> SlotMemory[list[int]]:
    made = SlotMemory(HashCells(4, 64, 1), 4)
    for slot in range(4):
        made.operate(Open(slot, Sampling(seed=0, prompt_count=len(PROMPT))))
    return made


def test_rows_are_numbered_in_the_order_of_the_answer(memory: SlotMemory[list[int]]) -> None:
    """Guards the order: by slots, as a library wants them, with the place in the batch kept."""
    laid_out = feed(
        memory,
        Entry(3, 0, PROMPT, wants_token=True),
        Entry(1, 0, PROMPT, wants_token=False),
        Entry(0, 0, PROMPT, wants_token=True),
    )
    assert [each.entry.slot for each in laid_out] == [0, 1, 3]
    assert [each.index for each in laid_out] == [2, 1, 0]
    assert [tuple(each.rows) for each in laid_out] == [(0,), (), (1,)]


def test_a_sequence_longer_than_the_model_is_refused(memory: SlotMemory[list[int]]) -> None:
    """Guards native code against a position that it has no room for."""
    with pytest.raises(BackendFailed, match="no room for 9 tokens"):
        feed(memory, Entry(0, 0, (1,) * 9, wants_token=True))
