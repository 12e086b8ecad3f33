"""How entries are laid out, where tokens are chosen on a device that has not told them yet.

What is checked of every entry is held by `tests/unit/backends/llamacpp/test_backend.py` and by the
conformance suite.
"""

from collections.abc import Sequence

import pytest

from jitney.backends.fake.hash_cells import HashCells
from jitney.backends.shared.layout import BatchLimits, EntryRows, lay_out
from jitney.backends.shared.slots import SlotMemory
from jitney.core.batch import Batch, Copy, Entry, MemoryOperation, Open, Sample, Sampling, Truncate
from jitney.errors import BackendFailed

LIMITS = BatchLimits(max_num_batched_tokens=16, slot_tokens_max=8, vocabulary_count=100)
PROMPT = (5, 6, 7)


class DeviceSampler:
    """Chooses on a device: the host hears of its tokens later."""

    def operate(self, operation: MemoryOperation) -> None:
        pass

    def last_tokens(self, slot: int) -> tuple[int, ...] | None:
        return ()

    def has_row_before(self, slot: int, position: int) -> bool:
        return True

    def sample(self, laid_out: Sequence[EntryRows], logits: object) -> list[Sample]:
        return [Sample() for _ in laid_out]

    def reset(self) -> None:
        pass


def feed(memory: SlotMemory[list[int]], *entries: Entry) -> list[EntryRows]:
    """Lay entries out and note that the cells hold them."""
    laid_out = lay_out(Batch(1, (), entries), memory, DeviceSampler(), LIMITS, by_slot=True)
    for each in laid_out:
        each.contents.append(each.tokens, each.entry.end)
    return laid_out


@pytest.fixture
def memory() -> SlotMemory[list[int]]:
    made = SlotMemory(HashCells(4, 64, 1), 4)
    for slot in range(4):
        made.operate(Open(slot, Sampling(seed=0, prompt_count=len(PROMPT))))
    return made


def test_an_entry_continues_from_a_token_that_only_the_device_knows(
    memory: SlotMemory[list[int]],
) -> None:
    """Guards device sampling: no batch waits for the token of the one before it."""
    feed(memory, Entry(2, 0, PROMPT, wants_token=True))
    for start in (3, 4):
        (ahead,) = feed(memory, Entry(2, start, (), wants_token=True, continues=True))
        assert (ahead.tokens, len(ahead.rows)) == ((), 1)
    contents = memory.contents(2)
    assert (contents.length, contents.tokens) == (5, [*PROMPT])
    for position, token in ((3, 8), (4, 9), (5, 7)):
        contents.learn(position, token)
    assert contents.tokens == [*PROMPT, 8, 9], "the slot has not continued from the last"
    with pytest.raises(BackendFailed, match="starts at 4"):
        feed(memory, Entry(2, 4, (1,), wants_token=True))


def test_memory_counts_what_the_device_is_ahead(memory: SlotMemory[list[int]]) -> None:
    """Guards truncation and copies: they go by what the cells hold, not by what is known here."""
    feed(memory, Entry(0, 0, PROMPT, wants_token=True))
    memory.contents(0).append((), 4)
    with pytest.raises(BackendFailed, match="Copy of 5 tokens"):
        memory.operate(Copy(0, 1, 5))
    memory.contents(0).learn(3, 9)
    memory._cells.append(0, (5, 6, 7, 9), 0)  # type: ignore[attr-defined]
    memory.operate(Truncate(0, 2))
    assert (memory.contents(0).length, memory.contents(0).tokens) == (2, [5, 6])


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
