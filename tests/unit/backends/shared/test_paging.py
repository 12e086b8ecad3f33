"""Memory in blocks: what is shared, what is copied, and what is refused."""

import pytest

from jitney.backends.shared.paging import BlockCopy, BlockPool, BlockTable
from jitney.errors import BackendFailed

SIZE = 4


def filled(pool: BlockPool, length: int) -> BlockTable:
    table = BlockTable()
    assert pool.grow(table, length) is None
    return table


def test_blocks_are_taken_as_tokens_come() -> None:
    """Guards against a block taken too early, or a token without one."""
    pool = BlockPool(4, SIZE)
    table = BlockTable()
    taken = []
    for _ in range(9):
        assert pool.grow(table, 1) is None
        taken.append(len(table.blocks))
    assert taken == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert table.length == 9
    assert pool.used_tokens == 3 * SIZE


def test_whole_blocks_are_shared_and_a_partial_one_is_copied() -> None:
    """Guards a prefix against what its second holder writes after it."""
    pool = BlockPool(8, SIZE)
    source, target = filled(pool, 11), BlockTable()
    copy = pool.share(source, target, 10)
    assert target.blocks[:2] == source.blocks[:2]
    assert copy == BlockCopy(source.blocks[2], target.blocks[2])
    assert target.blocks[2] not in source.blocks
    assert target.length == 10
    assert pool.used_tokens == 4 * SIZE


def test_a_prefix_of_whole_blocks_costs_nothing() -> None:
    """Guards against a copy that nobody needs."""
    pool = BlockPool(2, SIZE)
    source, target = filled(pool, 8), BlockTable()
    assert pool.share(source, target, 8) is None
    assert target.blocks == source.blocks
    assert target.blocks is not source.blocks
    assert pool.used_tokens == 2 * SIZE


def test_a_shared_block_outlives_its_first_holder() -> None:
    """Guards a cached prefix when the sequence that computed it ends."""
    pool = BlockPool(2, SIZE)
    source, target = filled(pool, 8), BlockTable()
    pool.share(source, target, 4)
    pool.shrink(source, 0)
    assert source == BlockTable()
    assert pool.used_tokens == SIZE
    third = filled(pool, 4)
    assert set(third.blocks).isdisjoint(target.blocks)
    pool.shrink(target, 0)
    pool.shrink(third, 0)
    assert pool.used_tokens == 0


def test_a_shared_block_that_was_cut_back_is_copied_before_it_is_written_to() -> None:
    """Guards the other holder: both would write their next token to the same place."""
    pool = BlockPool(4, SIZE)
    source, target = filled(pool, 8), BlockTable()
    pool.share(source, target, 8)
    pool.shrink(target, 6)
    assert target.blocks == source.blocks
    copy = pool.grow(target, 1)
    assert copy == BlockCopy(source.blocks[1], target.blocks[1])
    assert target.blocks[1] != source.blocks[1]
    assert pool.used_tokens == 3 * SIZE
    assert pool.grow(target, 1) is None


def test_full_memory_is_refused_and_nothing_has_changed() -> None:
    """Guards the tables: a failed growth must not leave blocks that nobody knows of."""
    pool = BlockPool(2, SIZE)
    table, other = filled(pool, 5), BlockTable()
    with pytest.raises(BackendFailed, match=r"Memory is full: 4 tokens more.*8 of 8 in use"):
        pool.grow(table, 4)
    with pytest.raises(BackendFailed, match="Memory is full"):
        pool.share(table, other, 5)
    assert (table.length, len(table.blocks), other) == (5, 2, BlockTable())
    pool.shrink(table, 0)
    assert pool.used_tokens == 0


def test_after_a_reset_all_blocks_are_there_again() -> None:
    """Guards the recovery after a failed batch."""
    pool = BlockPool(3, SIZE)
    filled(pool, 12)
    pool.reset()
    assert pool.used_tokens == 0
    assert sorted(filled(pool, 12).blocks) == [0, 1, 2]


def test_more_than_is_held_can_be_neither_shared_nor_kept() -> None:
    """Guards against cells that were never written."""
    pool = BlockPool(4, SIZE)
    source = filled(pool, 5)
    with pytest.raises(AssertionError, match="6 tokens of 5"):
        pool.share(source, BlockTable(), 6)
    with pytest.raises(AssertionError, match="6 tokens of 5"):
        pool.shrink(source, 6)
    with pytest.raises(AssertionError, match="not empty"):
        pool.share(source, filled(pool, 1), 2)
