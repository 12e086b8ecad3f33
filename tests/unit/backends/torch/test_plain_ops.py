"""Unit tests of the plain operations: attention against dense attention, and rows kept apart."""

import pytest

from tests.backends_for_tests import absence_reason

if reason := absence_reason("torch"):
    pytest.skip(reason, allow_module_level=True)

from dataclasses import replace

import torch
from torch import Tensor

from jitney.backends.torch.architecture import Activation, Architecture
from jitney.backends.torch.model import Layer
from jitney.backends.torch.pass_rows import PassRows, Span, pack
from jitney.backends.torch.plain_ops import QUERY_TILE, PlainOps
from jitney.backends.torch.scaled_weight import FP8

SHAPE = Architecture(
    family="llama",
    layers=1,
    width=32,
    heads=6,
    heads_kv=2,
    head=16,
    inner=48,
    vocabulary=10,
    length_max=512,
    epsilon=1e-5,
    attention_scale=0.3,
)
BLOCK, BLOCKS, SPARE = 32, 40, 40
CPU = torch.device("cpu")


def random(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def layer(*, window: int = 0, stale: float = 0.0) -> Layer:
    """A layer whose cells hold `stale` before anything is stored."""
    size = (BLOCKS + 1, BLOCK, SHAPE.heads_kv, SHAPE.head)
    angles = random(512, SHAPE.head // 2)
    none = torch.empty(0)
    return Layer(
        attention_norm=none,
        qkv=none,
        qkv_bias=None,
        query_norm=None,
        key_norm=None,
        output=none,
        after_attention_norm=None,
        feed_norm=none,
        gate_up=none,
        down=none,
        after_feed_norm=None,
        keys=torch.full(size, stale),
        values=torch.full(size, stale),
        cosines=angles.cos(),
        sines=angles.sin(),
        window=window,
    )


def rows_of(*spans: tuple[int, int, list[int]], decodes: int = 0, more: int = 0) -> PassRows:
    """The rows of spans, each a start, an end and blocks."""
    made = [Span([1] * (end - start), start, blocks, 1) for start, end, blocks in spans]
    return pack(
        made,
        decodes=decodes,
        row_count=sum(len(span.tokens) for span in made) + more,
        block_tokens=BLOCK,
        spare_block=SPARE,
        device=CPU,
    )


def dense(queries: Tensor, keys: Tensor, values: Tensor, start: int, window: int) -> Tensor:
    """Attention in three lines: queries [t, q, d] from a position on, all keys [n, k, d]."""
    group = SHAPE.heads // SHAPE.heads_kv
    keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
    scores = torch.einsum("tqd,nqd->qtn", queries, keys) * SHAPE.attention_scale
    at = torch.arange(start, start + len(queries))[:, None] - torch.arange(len(keys))
    hidden = (at < 0) | (at >= window) if window else at < 0
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("qtn,nqd->tqd", weights, values)


@pytest.mark.parametrize("window", [0, 20, 100])
def test_attention_in_blocks_is_dense_attention(window: int) -> None:
    """Guards decodes and spans beside each other, tiles that begin within a span, and windows."""
    own, ops = layer(window=window), PlainOps(SHAPE)
    lengths, starts = (70, 1, 150, 33), (69, 0, 50, 0)
    blocks = [[3, 9, 1], [5], [7, 2, 30, 11, 12], [8, 6]]
    keys = [random(n, SHAPE.heads_kv, SHAPE.head) for n in lengths]
    values = [random(n, SHAPE.heads_kv, SHAPE.head) * 2 for n in lengths]
    for table, key, value in zip(blocks, keys, values, strict=True):
        for at in range(len(key)):
            own.keys[table[at // BLOCK], at % BLOCK] = key[at]
            own.values[table[at // BLOCK], at % BLOCK] = value[at]
    spans = list(zip(starts, lengths, blocks, strict=True))
    rows = rows_of(*spans, decodes=2, more=5)
    queries = random(len(rows.tokens), SHAPE.heads, SHAPE.head)
    found = ops.attend(queries, own, rows).unflatten(1, (SHAPE.heads, SHAPE.head))
    first = 0
    for start, length, key, value in zip(starts, lengths, keys, values, strict=True):
        some = slice(first, first + length - start)
        expected = dense(queries[some], key, value, start, window)
        torch.testing.assert_close(found[some], expected, atol=1e-5, rtol=1e-5)
        first = some.stop


def test_a_span_is_computed_alike_wherever_it_is_cut() -> None:
    """Guards equal texts: each row to the last bit, in pieces of any size."""
    own, ops, length = layer(), PlainOps(SHAPE), 2 * QUERY_TILE + 20
    parts = random(1, length, (SHAPE.heads + 2 * SHAPE.heads_kv) * SHAPE.head)
    table = [4, 1, 9, 2, 8]

    def attended(*cuts: int) -> Tensor:
        made = []
        for start, end in zip((0, *cuts), (*cuts, length), strict=True):
            rows = rows_of((start, end, table))
            queries = ops.rotate_and_store(parts[:, start:end], own, rows)
            made.append(ops.attend(queries, own, rows))
        return torch.cat(made)

    whole = attended()
    assert torch.equal(attended(1, 2, 40, QUERY_TILE + 3), whole)
    assert torch.equal(attended(QUERY_TILE), whole)


def test_a_decode_is_computed_alike_beside_any_others() -> None:
    """Guards equal texts: neither the number of the others nor their length is seen in it."""
    own, ops = layer(), PlainOps(SHAPE)
    own.keys.copy_(random(*own.keys.shape))
    own.values.copy_(random(*own.values.shape))
    mine = (69, 70, [3, 9, 1])
    long = (300, 301, list(range(10, 20)))
    queries = random(2, SHAPE.heads, SHAPE.head)
    alone = ops.attend(queries[:1], own, rows_of(mine, decodes=1))
    beside = ops.attend(queries, own, rows_of(mine, long, decodes=2))
    assert torch.equal(alone[0], beside[0])


def test_a_product_in_tiles_is_the_product_of_each_tile() -> None:
    """Guards equal texts: every tile has one shape, and nobody's rows move."""
    x, weight = random(48, 32), random(20, 32)
    found = PlainOps(SHAPE, tile=16).product(x, weight)[0]
    for at in range(0, 48, 16):
        assert torch.equal(found[at : at + 16], x[at : at + 16] @ weight.T)
    torch.testing.assert_close(found, PlainOps(SHAPE).product(x, weight)[0])


@pytest.mark.parametrize("dtype", [torch.float16, FP8])
def test_what_is_stored_is_finite(dtype: torch.dtype) -> None:
    """Guards the next owner of a block: what it does not see yet counts nothing, times infinity."""
    own, ops = layer(), PlainOps(SHAPE)
    own = replace(own, cosines=None, sines=None, values=own.values.to(dtype))
    rows = rows_of((0, 2, [0]))
    parts = torch.full((1, 2, (SHAPE.heads + 2 * SHAPE.heads_kv) * SHAPE.head), 1e6)
    parts[:, 1] = torch.inf
    ops.rotate_and_store(parts, own, rows)
    assert bool((own.values[0, :2].float() == torch.finfo(dtype).max).all())


def test_norms_and_biases_are_applied_before_the_rotation() -> None:
    """Guards the order of what a family has of its own."""
    ones = torch.full((SHAPE.head,), 2.0)
    bias = torch.ones((SHAPE.heads + 2 * SHAPE.heads_kv) * SHAPE.head)
    own = replace(layer(), qkv_bias=bias, query_norm=ones, key_norm=ones, cosines=None, sines=None)
    parts = torch.ones(2, 1, len(bias))
    queries = PlainOps(SHAPE).rotate_and_store(parts, own, rows_of((0, 1, [0])))
    torch.testing.assert_close(queries, torch.full_like(queries, 2.0))
    torch.testing.assert_close(own.values[0, 0], torch.full_like(own.values[0, 0], 3.0))


def test_a_norm_adds_the_parts_to_the_residual_stream() -> None:
    """Guards the stream, which the next layer reads."""
    residual, parts = random(4, 32), random(3, 4, 32)
    expected = residual + parts.sum(0)
    normed = PlainOps(SHAPE).norm(parts, residual, torch.ones(32), 1e-5)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(normed, expected / (expected.square().mean(-1, True) + 1e-5).sqrt())


@pytest.mark.parametrize("activation", list(Activation))
def test_the_gate_comes_first(activation: Activation) -> None:
    """Guards the halves of the matrix, and both activations."""
    parts = random(1, 3, 96)
    gate, up = parts[0, :, :48], parts[0, :, 48:]
    found = PlainOps(replace(SHAPE, activation=activation)).activate(parts)
    if activation is Activation.SILU:
        expected = gate * gate.sigmoid() * up
    else:
        cubic = 0.7978845608 * (gate + 0.044715 * gate**3)
        expected = 0.5 * gate * (1 + cubic.tanh()) * up
    torch.testing.assert_close(found, expected)
