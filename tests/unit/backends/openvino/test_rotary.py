"""Rotary embeddings as numbers: what turns how fast, by hand where that can be said."""

import math
from typing import Any

import numpy as np
import pytest

from jitney.backends.openvino.families import FACTORS_ANY, FACTORS_LONG, FACTORS_SHORT
from jitney.backends.openvino.rotary import read_rotary, row_order
from jitney.models.gguf import GgufHeader

HEAD = 8


def header(architecture: str = "llama", **keys: Any) -> GgufHeader:  # Any: values of metadata
    names = {name.replace("__", "."): value for name, value in keys.items()}
    return GgufHeader(
        architecture=architecture,
        context_length=4096,
        layer_count=9,
        embedding_length=4 * HEAD,
        head_count=4,
        parameter_count=1,
        kv_bytes_per_token=1,
        state_bytes=0,
        file_bytes=1,
        weight_types=frozenset({"F32"}),
        tensor_kinds=frozenset(),
        metadata={f"{architecture}.{name}": value for name, value in names.items()},
    )


PLAIN = np.array([1.0, 0.1, 0.01, 0.001])
"""A head of eight numbers with the usual base."""


def test_a_plain_one_falls_by_powers_of_the_base() -> None:
    """Guards the numbers that the reader would round to 16 bits."""
    rotary = read_rotary(header(), {})
    assert rotary.frequencies.dtype == np.float32
    np.testing.assert_allclose(rotary.frequencies, PLAIN, rtol=1e-6)
    assert np.all(rotary.gains == 1.0)
    assert not rotary.bare_layers


def test_base_and_length_of_a_head_are_read() -> None:
    """Guards models whose heads are not the width divided by their number."""
    rotary = read_rotary(header(attention__key_length=4, rope__freq_base=400.0), {})
    np.testing.assert_allclose(rotary.frequencies, [1.0, 1 / 20], rtol=1e-6)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        {"rope__scaling__factor": 4},
        {"rope__scale_linear": 4.0},
    ],
)
def test_a_linear_factor_divides_all(keys: dict[str, Any]) -> None:
    """Guards the three ways in which files say it."""
    np.testing.assert_allclose(read_rotary(header(**keys), {}).frequencies, PLAIN / 4, rtol=1e-6)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope__scaling__type": "none", "rope__scaling__factor": 4.0},
        {"rope__scaling__type": "linear"},
        {"rope__scaling__type": "linear", "rope__scaling__factor": 0.0},
    ],
)
def test_no_factor_leaves_all(keys: dict[str, Any]) -> None:
    """Guards files that name a rule and do not use it."""
    np.testing.assert_allclose(read_rotary(header(**keys), {}).frequencies, PLAIN, rtol=1e-6)


def test_factors_of_pairs_divide_each() -> None:
    """Guards Llama 3.1 and later."""
    factors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    rotary = read_rotary(header(), {FACTORS_ANY: factors})
    np.testing.assert_allclose(rotary.frequencies, PLAIN / factors, rtol=1e-6)


@pytest.mark.parametrize("keys", [{}, {"rope__scaling__type": "longrope"}])
def test_of_two_lists_that_for_short_sequences_counts(keys: dict[str, Any]) -> None:
    """Guards Phi: sequences are kept as short as that."""
    short, long = np.full(4, 2.0, np.float32), np.full(4, 50.0, np.float32)
    stated = header("phi3", rope__scaling__attn_factor=1.5, **keys)
    rotary = read_rotary(stated, {FACTORS_SHORT: short, FACTORS_LONG: long})
    np.testing.assert_allclose(rotary.frequencies, PLAIN / 2, rtol=1e-6)
    np.testing.assert_allclose(rotary.gains, 1.5, rtol=1e-6)


def test_a_list_of_another_length_is_an_error() -> None:
    """Guards against factors that numpy would spread over all pairs."""
    with pytest.raises(ValueError, match="factors"):
        read_rotary(header(), {FACTORS_ANY: np.ones(3, np.float32)})
    with pytest.raises(ValueError, match="factors"):
        read_rotary(header(), {FACTORS_ANY: np.ones(1, np.float32)})


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    """Guards the two ends, what lies between, and the growth that goes with it."""
    stated = header(
        attention__key_length=128,
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=2048,
    )
    rotary = read_rotary(stated, {})
    plain = 10_000.0 ** (-np.arange(64) / 64)
    turns = 2048 * plain / (2 * math.pi)
    share = rotary.frequencies / plain
    np.testing.assert_allclose(share[turns > 40], 1.0, rtol=1e-5)
    np.testing.assert_allclose(share[turns < 0.8], 0.25, rtol=1e-5)
    assert np.all(np.diff(share) <= 1e-6)
    np.testing.assert_allclose(rotary.gains, 1.0 + 0.1 * math.log(4.0), rtol=1e-6)


def test_what_is_not_rotated_stands_still_and_does_not_grow() -> None:
    """Guards heads of which a part is rotated."""
    stated = header("phi3", rope__dimension_count=4, rope__scaling__attn_factor=1.5)
    rotary = read_rotary(stated, {})
    np.testing.assert_allclose(rotary.frequencies, [1.0, 0.01, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(rotary.gains, [1.5, 1.5, 1.0, 1.0], rtol=1e-6)
    # Pairs are (0, 2) and (1, 3); in the new order they are half a head apart.
    assert row_order(stated).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_a_head_that_is_rotated_whole_keeps_its_order() -> None:
    """Guards against moving rows for nothing."""
    assert row_order(header("phi3")).tolist() == list(range(HEAD))


def test_every_fourth_layer_of_smollm3_has_none() -> None:
    """Guards the layers that tell tokens apart by nothing but what they say."""
    assert read_rotary(header("smollm3"), {}).bare_layers == {3, 7}
