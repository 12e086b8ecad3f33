"""`rotate_and_store`: makes heads of a product: queries to go on with, keys and values to keep.

Adds the parts and the bias, norms each head of queries and keys where the family does that, turns
both by their position, and writes keys and values into the cells of the paged cache. A program
computes a few heads of one row.

Tests: tests/unit/backends/torch/kernels/test_heads.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options

HEADS = 8
"""Heads that one program computes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is done with queries and keys in one layer, besides the product."""

    cosines: torch.Tensor | None
    """[positions, d / 2] in float32; None for a layer that knows no positions."""
    sines: torch.Tensor | None
    bias: torch.Tensor | None = None
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    eps: float = 1e-6


@triton.jit(do_not_specialize=["R"])
def _rotate_and_store(
    parts, positions, cells, keys, values, queries, cosines, sines, bias, query_norm, key_norm,
    R, eps, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, PARTS: tl.constexpr, TURNS: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    half: tl.constexpr = D // 2
    width: tl.constexpr = (HQ + 2 * HKV) * D
    row = tl.program_id(0)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    inside = (head < HQ + 2 * HKV) & (j < half)
    # Each head in two halves: a turn mixes element j of one with element j of the other.
    a = tl.zeros((HEADS, BLOCK), tl.float32)
    b = tl.zeros((HEADS, BLOCK), tl.float32)
    for part in tl.static_range(PARTS):
        at = parts + (part * R + row).to(tl.int64) * width + head * D + j
        a += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        b += tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        a += tl.load(bias + head * D + j, mask=inside, other=0.0).to(tl.float32)
        b += tl.load(bias + head * D + half + j, mask=inside, other=0.0).to(tl.float32)
    is_query = head < HQ
    is_value = head >= HQ + HKV
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1, keep_dims=True) / D + eps)
        for_query = inside & is_query
        for_key = inside & (head >= HQ) & (head < HQ + HKV)
        low = tl.load(query_norm + j + head * 0, mask=for_query, other=0.0).to(tl.float32)
        low += tl.load(key_norm + j + head * 0, mask=for_key, other=0.0).to(tl.float32)
        high = tl.load(query_norm + half + j + head * 0, mask=for_query, other=0.0).to(tl.float32)
        high += tl.load(key_norm + half + j + head * 0, mask=for_key, other=0.0).to(tl.float32)
        a = tl.where(is_value, a, a * scale * low)
        b = tl.where(is_value, b, b * scale * high)
    if TURNS:
        angle = tl.load(positions + row).to(tl.int64) * half + j
        cosine = tl.load(cosines + angle, mask=j < half, other=0.0)
        sine = tl.load(sines + angle, mask=j < half, other=0.0)
        turned = a * cosine - b * sine
        b = tl.where(is_value, b, b * cosine + a * sine)
        a = tl.where(is_value, a, turned)
    to = queries + (row * HQ + head).to(tl.int64) * D + j
    tl.store(to, a.to(queries.dtype.element_ty), mask=inside & is_query)
    tl.store(to + half, b.to(queries.dtype.element_ty), mask=inside & is_query)
    cell = tl.load(cells + row).to(tl.int64) * HKV
    is_key = (head >= HQ) & (head < HQ + HKV)
    to = keys + (cell + head - HQ) * D + j
    tl.store(to, a.to(keys.dtype.element_ty), mask=inside & is_key)
    tl.store(to + half, b.to(keys.dtype.element_ty), mask=inside & is_key)
    to = values + (cell + head - HQ - HKV) * D + j
    tl.store(to, a.to(values.dtype.element_ty), mask=inside & is_value)
    tl.store(to + half, b.to(values.dtype.element_ty), mask=inside & is_value)


def rotate_and_store(
    parts: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    turn: Turn,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Queries [r, q, d] of parts [p, r, (q + 2 k) d]: queries, keys, values.

    `keys` and `values` are [blocks, tokens, k, d]; row r is written to cell `cells[r]` of them.
    """
    part_count, rows, width = parts.shape
    key_heads, depth = keys.shape[-2:]
    query_heads = width // depth - 2 * key_heads
    queries = parts.new_empty((rows, query_heads, depth), dtype=dtype)
    nothing = queries  # never read
    grid = (rows, triton.cdiv(query_heads + 2 * key_heads, HEADS))
    _rotate_and_store[grid](
        parts, positions, cells, keys, values, queries,
        *(nothing if each is None else each for each in
          (turn.cosines, turn.sines, turn.bias, turn.query_norm, turn.key_norm)),
        rows, turn.eps, query_heads, key_heads, depth, triton.next_power_of_2(depth // 2), HEADS,
        part_count, turn.cosines is not None, turn.bias is not None, turn.query_norm is not None,
        num_warps=2, **launch_options(parts),
    )  # fmt: skip
    return queries
