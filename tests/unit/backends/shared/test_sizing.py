"""How large the memory of a pool of blocks is."""

from typing import Any

import pytest

from jitney.backends.shared.sizing import Sizes, TokenMemory, size_paged
from jitney.config import Settings
from jitney.core import limits
from jitney.errors import ModelError


def memory(token_bytes: float, free_bytes: int | None) -> TokenMemory:
    return TokenMemory(token_bytes=token_bytes, unit=32, free_bytes=free_bytes)


@pytest.mark.parametrize(
    ("changes", "free_bytes", "expected"),
    [
        ({}, None, Sizes(16 * 4096, 80, 0)),
        ({}, 10**12, Sizes(16 * 4096, 80, 0)),
        ({"max_num_seqs": 100}, None, Sizes(100 * 4096, 200, 0)),
        ({"max_model_len": 100}, None, Sizes(16 * 128, 80, 0)),
        ({"max_model_len": 100}, 10**6, Sizes(224, 80, 0)),
        ({"max_model_len": 100}, 130_000, Sizes(128, 80, 0)),
        ({"kv_tokens": 5000}, 10**12, Sizes(5000, 80, 0)),
        ({"memory_limit": 2 * 10**6}, 10**12, Sizes(1984, 80, 0)),
        (
            {"max_num_seqs": 4096, "max_model_len": 10**6, "max_num_batched_tokens": 4096},
            None,
            Sizes(limits.TOKENS_MAX, 8192, 0),
        ),
    ],
)
def test_a_pool_of_blocks_has_room_for_all_sequences_or_for_what_fits(
    changes: dict[str, Any], free_bytes: int | None, expected: Sizes
) -> None:
    """Guards against preemption where memory is plenty, and against more than there is."""
    assert size_paged(Settings(**changes), 8192, memory(1000, free_bytes)) == expected


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        (10**12, 131_072),
        (4 * 10**8, 100_000),
        (4 * 10**7, 9984),
        (5 * 10**6, 4096),
        (2 * 10**6, 1984),
        (33_000, 32),
        (None, 16 * 4096),
    ],
)
def test_a_long_model_gets_one_long_sequence_or_what_fits(
    free_bytes: int | None, expected: int
) -> None:
    """Guards prompts of agents, and starts where memory is small."""
    found = size_paged(Settings(), 131_072, memory(1000, free_bytes))
    assert found.kv_tokens == expected


def test_a_pool_of_blocks_is_no_longer_than_the_model_was_trained_for() -> None:
    """Guards against memory that no sequence can ever use."""
    assert size_paged(Settings(), 50, memory(1000, None)) == Sizes(16 * 64, 80, 0)


@pytest.mark.parametrize(
    "changes", [{"kv_tokens": 10**7}, {"memory_limit": 10**10}, {"max_model_len": 10**6}]
)
def test_a_pool_that_the_machine_does_not_have_is_refused_by_name(changes: dict[str, Any]) -> None:
    """Guards against an out-of-memory kill, hours after the start."""
    with pytest.raises(ModelError, match=f"^{next(iter(changes))} asks for .* GiB"):
        size_paged(Settings(**changes), 10**7, memory(1001, 10**9))


def test_a_pool_counts_fractions_of_a_byte() -> None:
    """Guards kinds of numbers that share their scales among many."""
    assert size_paged(Settings(memory_limit=2**20), 8192, memory(1.25, None)).kv_tokens == 838_848
