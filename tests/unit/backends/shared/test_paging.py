"""Memory in blocks: what is shared, what is copied, and what is refused."""

import pytest

from jitney.backends.shared.paging import BlockCopy, BlockPool
from jitney.errors import BackendFailed

SIZE = 4


def filled(blocks: int, *lengths: int) -> BlockPool:
    """A pool of three slots; the first ones hold so many tokens."""
    pool = BlockPool(3, blocks, SIZE)
    for slot, length in enumerate(lengths):
        assert pool.grow(slot, length) is None
    return pool


def test_blocks_are_taken_as_tokens_come() -> None:
    """Guards against a block taken too early, or a token without one."""
    pool = filled(4)
    taken = []
    for _ in range(9):
        assert pool.grow(0, 1) is None
        taken.append(len(pool.blocks[0]))
    assert taken == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert pool.lengths == [9, 0, 0]
    assert pool.used_tokens == 3 * SIZE


def test_whole_blocks_are_shared_and_a_partial_one_is_copied() -> None:
    """Guards a prefix against what its second holder writes after it."""
    pool = filled(8, 11)
    copy = pool.share(0, 1, 10)
    source, target = pool.blocks[:2]
    assert target[:2] == source[:2]
    assert copy == BlockCopy(source[2], target[2])
    assert target[2] not in source
    assert pool.lengths == [11, 10, 0]
    assert pool.used_tokens == 4 * SIZE


def test_a_prefix_of_whole_blocks_costs_nothing() -> None:
    """Guards against a copy that nobody needs."""
    pool = filled(2, 8)
    assert pool.share(0, 1, 8) is None
    assert pool.blocks[0] == pool.blocks[1]
    assert pool.blocks[0] is not pool.blocks[1]
    assert pool.used_tokens == 2 * SIZE


def test_a_shared_block_outlives_its_first_holder() -> None:
    """Guards a cached prefix when the sequence that computed it ends."""
    pool = filled(2, 8)
    pool.share(0, 1, 4)
    pool.shrink(0, 0)
    assert (pool.blocks[0], pool.lengths[0]) == ([], 0)
    assert pool.used_tokens == SIZE
    pool.grow(2, 4)
    assert set(pool.blocks[2]).isdisjoint(pool.blocks[1])
    pool.shrink(1, 0)
    pool.shrink(2, 0)
    assert pool.used_tokens == 0


def test_a_shared_block_that_was_cut_back_is_copied_before_it_is_written_to() -> None:
    """Guards the other holder: both would write their next token to the same place."""
    pool = filled(4, 8)
    pool.share(0, 1, 8)
    pool.shrink(1, 6)
    source, target = pool.blocks[:2]
    assert target == source
    copy = pool.grow(1, 1)
    assert copy == BlockCopy(source[1], target[1])
    assert target[1] != source[1]
    assert pool.used_tokens == 3 * SIZE
    assert pool.grow(1, 1) is None


def test_full_memory_is_refused_and_nothing_has_changed() -> None:
    """Guards the slots: a failed growth must not leave blocks that nobody knows of."""
    pool = filled(2, 5)
    with pytest.raises(BackendFailed, match=r"Memory is full: 4 tokens more.*8 of 8 in use"):
        pool.grow(0, 4)
    with pytest.raises(BackendFailed, match="Memory is full"):
        pool.share(0, 1, 5)
    assert (pool.lengths, len(pool.blocks[0]), pool.blocks[1]) == ([5, 0, 0], 2, [])
    pool.shrink(0, 0)
    assert pool.used_tokens == 0


def test_after_a_reset_all_blocks_are_there_again() -> None:
    """Guards the recovery after a failed batch."""
    pool = filled(3, 12)
    pool.reset()
    assert pool.used_tokens == 0
    pool.grow(1, 12)
    assert sorted(pool.blocks[1]) == [0, 1, 2]


def test_more_than_is_held_can_be_neither_shared_nor_kept() -> None:
    """Guards against cells that were never written."""
    pool = filled(4, 5, 1)
    with pytest.raises(AssertionError, match="6 tokens of 5"):
        pool.share(0, 2, 6)
    with pytest.raises(AssertionError, match="6 tokens of 5"):
        pool.shrink(0, 6)
    with pytest.raises(AssertionError, match="not empty"):
        pool.share(0, 1, 2)
