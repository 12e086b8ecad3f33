"""`attend_decodes`: attention of one new token of each sequence over its blocks.

A program computes all query heads of one key head, for SPLIT positions of one sequence. Where a
sequence is longer, another kernel joins the splits in their order. A split is a fixed number of
positions, so the result does not depend on the rest of the batch.

Tests: tests/unit/backends/torch/kernels/test_decode_attention.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options
from jitney.backends.torch.kernels.widening import widened

SPLIT = 512
"""Positions that one program reads."""

LOG2_E = 1.4426950408889634
DOT_MIN = 16
"""The fewest rows of a matrix instruction, and the least depth."""

CHUNK = 64
"""Positions that it reads at a time."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The memory of one layer."""

    keys: torch.Tensor
    """[blocks, tokens, k, d], as the values are."""
    values: torch.Tensor
    window: int = 0
    """A token sees itself and the `window` - 1 tokens before it; 0 means all of them."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences of which one new token each is computed."""

    tables: torch.Tensor
    """[slots, n]: the blocks of every slot."""
    slots: torch.Tensor
    """[s]: the slot of each sequence."""
    starts: torch.Tensor
    """[s]: the position of its new token."""
    length_max: int
    """No sequence sees more positions."""


@triton.jit(do_not_specialize=["SPLITS"])
def _attend_split(
    queries, keys, values, tables, slots, starts, out, sums, scale, SPLITS,
    TABLE: tl.constexpr, BLOCK: tl.constexpr, HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    BG: tl.constexpr, BD: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr,
    IS_SPLIT: tl.constexpr, WINDOW: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(starts + sequence) + 1
    table = tables + tl.load(slots + sequence).to(tl.int64) * TABLE
    start = split * SPLIT
    end = tl.minimum(length, start + SPLIT)
    seen = 0
    if WINDOW > 0:
        seen = tl.maximum(length - WINDOW, 0)
        start = tl.maximum(start, seen // CHUNK * CHUNK)
    if start < end:
        g = tl.arange(0, BG)[:, None]
        d = tl.arange(0, BD)
        t = tl.arange(0, CHUNK)
        is_head = (g < G) & (d[None, :] < D)
        query_at = ((sequence * HKV + head) * G + g) * D + d[None, :]
        query = tl.load(queries + query_at, mask=is_head, other=0.0)
        best = tl.full((BG,), float("-inf"), tl.float32)
        total = tl.zeros((BG,), tl.float32)
        mixed = tl.zeros((BG, BD), tl.float32)
        for first in range(start, end, CHUNK):
            p = first + t
            block = tl.load(table + p // BLOCK, mask=p < end, other=0)
            at = ((block.to(tl.int64) * BLOCK + p % BLOCK) * HKV + head) * D
            key = tl.load(
                keys + at[None, :] + d[:, None],
                mask=(p[None, :] < end) & (d[:, None] < D), other=0.0,
            )  # fmt: skip
            is_value = (p[:, None] < end) & (d[None, :] < D)
            value = tl.load(values + at[:, None] + d[None, :], mask=is_value, other=0.0)
            score = tl.dot(query, widened(key, query.dtype), input_precision="ieee") * scale
            score = tl.where(((p < end) & (p >= seen))[None, :], score, float("-inf"))
            better = tl.maximum(best, tl.max(score, 1))
            # A chunk may have no position of the window.
            base = tl.where(better == float("-inf"), 0.0, better)
            weight = tl.exp2(score - base[:, None])
            fade = tl.exp2(best - base)
            total = total * fade + tl.sum(weight, 1)
            mixed = mixed * fade[:, None]
            value = widened(value, query.dtype)
            mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision="ieee")
            best = better
        mixed = mixed / total[:, None]
        if not IS_SPLIT:
            tl.store(out + query_at, mixed.to(out.dtype.element_ty), mask=is_head)
        else:
            part = ((sequence * SPLITS + split) * HKV + head) * G + g
            tl.store(out + part.to(tl.int64) * D + d[None, :], mixed, mask=is_head)
            tl.store(sums + part, (best + tl.log2(total))[:, None], mask=g < G)


@triton.jit(do_not_specialize=["SPLITS", "FIRST"])
def _join_splits(
    parts, sums, starts, out, SPLITS, FIRST,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    sequence = FIRST + tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(starts + sequence) + 1
    d = tl.arange(0, BD)
    begun = 0
    if WINDOW > 0:
        begun = tl.maximum(length - WINDOW, 0) // SPLIT
    best = float("-inf")
    total = 0.0
    mixed = tl.zeros((BD,), tl.float32)
    for split in range(begun, tl.cdiv(length, SPLIT)):
        part = (sequence * SPLITS + split) * H + head
        amount = tl.load(sums + part)
        value = tl.load(parts + part.to(tl.int64) * D + d, mask=d < D, other=0.0)
        better = tl.maximum(best, amount)
        fade = tl.exp2(best - better)
        weight = tl.exp2(amount - better)
        total = total * fade + weight
        mixed = mixed * fade + value * weight
        best = better
    at = out + (sequence * H + head) * D + d
    tl.store(at, (mixed / total).to(out.dtype.element_ty), mask=d < D)


def join_splits(
    parts: torch.Tensor,
    sums: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    rows: range,
    *,
    split: int,
    window: int,
) -> None:
    """Writes rows of `out` [r, q, d]: the parts [r, s, q, d] that they see, in their order.

    `sums` [r, s, q] say how much each part counts, and `starts` [r] the position of each row. A
    part is of `split` positions.
    """
    splits, heads, depth = parts.shape[1:]
    padded = max(triton.next_power_of_2(depth), DOT_MIN)
    _join_splits[(len(rows), heads)](
        parts, sums, starts, out, splits, rows.start, heads, depth, padded, split, window,
        num_warps=1, **launch_options(out),
    )  # fmt: skip


def attend_decodes(
    queries: torch.Tensor,
    cache: Cache,
    sequences: Sequences,
    out: torch.Tensor,
    scale: float,
    *,
    is_many: bool,
) -> None:
    """Writes attention of the first rows of queries [r, q, d], one of each sequence, to `out`.

    `is_many` is for passes that fill the GPU with programs; results are rounded differently.
    """
    count = len(sequences.starts)
    _, block_tokens, key_heads, depth = cache.keys.shape
    heads = queries.shape[1]
    group = heads // key_heads
    splits = triton.next_power_of_2(triton.cdiv(sequences.length_max, SPLIT))
    padded = max(triton.next_power_of_2(depth), DOT_MIN)
    parts, sums = out, out
    if splits > 1:
        parts = queries.new_empty((count, splits, heads, depth), dtype=torch.float32)
        sums = queries.new_empty((count, splits, heads), dtype=torch.float32)
    options = launch_options(queries)
    _attend_split[(count, key_heads, splits)](
        queries, cache.keys, cache.values, sequences.tables, sequences.slots, sequences.starts,
        parts, sums, scale * LOG2_E, splits, sequences.tables.stride(0), block_tokens, key_heads,
        group, depth, max(triton.next_power_of_2(group), DOT_MIN), padded, CHUNK, SPLIT,
        splits > 1, cache.window, num_warps=2 if is_many else 4, num_stages=2 if is_many else 3,
        **options,
    )  # fmt: skip
    if splits > 1:
        rows = range(count)
        join_splits(parts, sums, sequences.starts, out, rows, split=SPLIT, window=cache.window)
