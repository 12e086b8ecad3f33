"""How large the memory of llama.cpp is, and when each slot has cells of its own."""

from dataclasses import replace
from typing import Any

import pytest

from jitney.backends.llamacpp.memory_layout import own_cells, size_llamacpp, token_bytes_of
from jitney.backends.shared.sizing import Sizes
from jitney.config import Settings
from jitney.errors import ConfigError, ModelError
from jitney.models.gguf import GgufHeader


def header(token_bytes: int = 1000) -> GgufHeader:
    return GgufHeader(
        architecture="llama",
        context_length=4096,
        layer_count=1,
        embedding_length=1,
        head_count=1,
        parameter_count=1,
        kv_bytes_per_token=token_bytes,
        state_bytes=0,
        file_bytes=10**6,
        weight_types=frozenset(),
        tensor_kinds=frozenset(),
        metadata={},
    )


EIGHT = {"max_num_seqs": 8, "max_per_sequence": "even"}


@pytest.mark.parametrize(
    ("changes", "free_bytes", "expected"),
    [
        ({}, None, Sizes(16_384, 32, 0)),
        ({}, 5 * 10**6, Sizes(1792, 32, 0)),
        ({}, 10**12, Sizes(24 * 4096, 24, 4096)),
        ({"max_model_len": 1000}, 10**12, Sizes(24 * 1024, 24, 1024)),
        ({"max_model_len": 20_000}, 10**9, Sizes(20_000, 32, 0)),
        ({"kv_tokens": 4000}, 10**12, Sizes(4000, 32, 0)),
        ({"kv_tokens": 8000, "max_model_len": 256}, 10**12, Sizes(8000, 24, 256)),
        ({"memory_limit": 2 * 10**6}, 10**12, Sizes(1792, 32, 0)),
        # ADR 005: n_ctx / n_parallel for each, which is all that there is.
        ({**EIGHT, "kv_tokens": 8192}, 10**12, Sizes(8192, 8, 1024)),
        ({**EIGHT, "kv_tokens": 10_000}, 10**12, Sizes(10_000, 24, 0)),
        ({**EIGHT, "kv_tokens": 8192, "max_model_len": 600}, 10**12, Sizes(8192, 8, 768)),
        ({**EIGHT, "kv_tokens": 49_152}, 10**12, Sizes(49_152, 12, 4096)),
        ({**EIGHT, "kv_tokens": 8192, "max_num_seqs": 6}, 10**12, Sizes(8192, 22, 0)),
        ({**EIGHT, "memory_limit": 8192 * 1000}, 10**12, Sizes(8192, 8, 1024)),
        ({"gpu_layers": -1}, 10**12, Sizes(16_384, 32, 0)),
    ],
)
def test_memory_is_what_was_asked_for_or_what_fits(
    changes: dict[str, Any], free_bytes: int | None, expected: Sizes
) -> None:
    """Guards against a default that does not fit, and against a wish that is overruled."""
    assert size_llamacpp(Settings(**changes), header(), free_bytes) == expected


@pytest.mark.parametrize(
    ("limit", "state_bytes", "kv_type", "expected"),
    [
        (2**20, 0, "float16", Sizes(1024, 32, 0)),
        (2**20, 0, "q8_0", Sizes(1792, 32, 0)),
        (2**20 + 32 * 4096, 4096, "float16", Sizes(1024, 32, 0)),
        (2**20 + 32 * 4096, 4096, "q8_0", Sizes(1792, 32, 0)),
    ],
)
def test_numbers_of_8_bits_take_34_bytes_for_32(
    limit: int, state_bytes: int, kv_type: Any, expected: Sizes
) -> None:
    """Guards what fits: with the bytes of 16 bits, half of a memory would stay empty."""
    small = replace(header(1024), state_bytes=state_bytes)
    assert token_bytes_of(small, kv_type) == {"float16": 1024, "q8_0": 544}[kv_type]
    settings = Settings(memory_limit=limit, kv_cache_dtype=kv_type)
    assert size_llamacpp(settings, small, 10**12) == expected


@pytest.mark.parametrize(
    ("changes", "free_bytes", "expected"),
    [
        ({}, 10**12, Sizes(24 * 32_768, 24, 32_768)),
        ({}, 10**9, Sizes(24 * 8192, 24, 8192)),
        ({}, 3 * 10**8, Sizes(32_768, 32, 0)),
        ({}, 3 * 10**7, Sizes(14_336, 32, 0)),
        ({}, None, Sizes(16_384, 32, 0)),
        ({"kv_tokens": 24 * 16_384}, 10**12, Sizes(24 * 16_384, 24, 16_384)),
    ],
)
def test_a_long_model_has_sequences_as_long_as_fit(
    changes: dict[str, Any], free_bytes: int | None, expected: Sizes
) -> None:
    """Guards prompts of agents: lengths are halved until all slots have cells of their own."""
    long = replace(header(), context_length=32_768)
    assert size_llamacpp(Settings(**changes), long, free_bytes) == expected


@pytest.mark.parametrize("changes", [{"kv_tokens": 10**9}, {"memory_limit": 10**12}])
def test_a_budget_that_the_machine_does_not_have_is_refused_by_name(
    changes: dict[str, Any],
) -> None:
    """Guards against an out-of-memory kill, and against a wish that is lowered in silence."""
    with pytest.raises(ModelError, match=next(iter(changes))):
        size_llamacpp(Settings(**changes), header(), 10**9)


def test_a_memory_limit_that_holds_too_little_is_refused_with_the_numbers() -> None:
    """Guards against an engine that starts and can answer nothing."""
    changes = Settings(memory_limit=2 * 10**6, max_model_len=2000)
    with pytest.raises(ConfigError, match="give at least 2048000"):
        size_llamacpp(changes, header(), None)
    with pytest.raises(ConfigError, match="give kv_tokens"):
        size_llamacpp(changes, header(token_bytes=0), None)


@pytest.mark.parametrize("sequences", [1, 4, 16])
def test_the_budget_that_is_named_gives_each_slot_its_own_cells(sequences: int) -> None:
    """Guards advice: whoever follows it must get what it promises, and not with less."""
    changes = Settings(max_num_seqs=sequences, max_model_len=300)
    tokens = own_cells(changes, header()).kv_tokens
    enough = replace(changes, kv_tokens=tokens)
    assert size_llamacpp(enough, header(), 10**12).slot_tokens_max == 512
    less = replace(changes, kv_tokens=tokens - 1)
    assert size_llamacpp(less, header(), 10**12).slot_tokens_max == 0


@pytest.mark.parametrize(
    ("changes", "free_bytes", "expected"),
    [
        ({}, None, Sizes(16 * 1024, 8, 0)),
        ({}, 10**12, Sizes(16 * 1024, 20, 0)),
        ({"gpu_layers": -1}, None, Sizes(16 * 1024, 8, 0)),
        ({"max_model_len": 30_000}, 10**12, Sizes(30_208, 20, 0)),
        ({"max_model_len": 30_000}, 11 * 10**6, Sizes(30_208, 8, 0)),
        # Eight states take 8 of 10 million bytes beside the weights, and half of the rest is taken.
        ({}, 11 * 10**6, Sizes(768, 8, 0)),
        ({"kv_tokens": 2048}, 10**12, Sizes(2048, 20, 0)),
        # The limit is for states and tokens, whatever the machine has.
        ({"memory_limit": 10 * 10**6}, 10**12, Sizes(1792, 8, 0)),
        ({"memory_limit": 8 * 10**6 + 256_000}, 10**12, Sizes(256, 8, 0)),
        ({"memory_limit": 200 * 10**6}, 10**12, Sizes(179_968, 20, 0)),
    ],
)
def test_states_take_memory_before_tokens_do(
    changes: dict[str, Any], free_bytes: int | None, expected: Sizes
) -> None:
    """Guards a start that finds no memory for the states of all slots."""
    settings = Settings(max_num_seqs=4, **changes)
    found = replace(header(), state_bytes=10**6)
    assert size_llamacpp(settings, found, free_bytes) == expected


def test_a_model_of_states_alone_needs_no_memory_for_tokens() -> None:
    """Guards Mamba, whose header says nothing of keys and values."""
    found = replace(header(0), state_bytes=10**6)
    settings = Settings(max_num_seqs=4, memory_limit=2 * 10**8)
    assert size_llamacpp(settings, found, 10**12) == Sizes(16 * 1024, 20, 0)
    with pytest.raises(ConfigError, match="give at least 8000000, or lower max_num_seqs"):
        size_llamacpp(replace(settings, memory_limit=2 * 10**6), found, 10**12)
