"""`attend_spans`: causal attention of spans of prompts over their blocks.

A program computes a tile of queries of one span, all heads of one key head, for SPAN_SPLIT
positions that they see. It reads keys block by block, and the splits are joined in their order, so
each row is computed alike however a prompt is divided into spans.

Tests: tests/unit/backends/torch/kernels/test_span_attention.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.decode_attention import (
    CHUNK,
    DOT_MIN,
    LOG2_E,
    Cache,
    join_splits,
)
from jitney.backends.torch.kernels.launch import launch_options
from jitney.backends.torch.kernels.widening import widened

TILE_ROWS = 128
"""Pairs of a query and a head in one program."""

SPAN_SPLIT = 4096
"""Positions that one program reads. A few queries after a long text would keep only a few programs
busy, and for long."""

WIDE = 256
"""Heads of so many elements get smaller tiles."""


def tile_queries(group: int, depth: int) -> int:
    """How many queries one program computes, with `group` query heads for a key head."""
    rows = TILE_ROWS if depth < WIDE else TILE_ROWS // 2
    return max(rows // group, 1)


@triton.jit
def _mix_blocks(
    query, mixed, best, total, keys, values, table, head, position, scale, start, end,
    BLOCK: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, CHUNK: tl.constexpr,
    WINDOW: tl.constexpr, HIDES: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BD)
    t = tl.arange(0, CHUNK)
    for first in range(start, end, CHUNK):
        block = tl.load(table + first // BLOCK).to(tl.int64)
        at = ((block * BLOCK + first % BLOCK + t) * HKV + head) * D
        # Beyond the end a block holds anything, also what is no number.
        p = first + t
        if D == BD and not HIDES:
            key = tl.load(keys + at[None, :] + d[:, None])
            value = tl.load(values + at[:, None] + d[None, :])
        else:
            is_key = (d[:, None] < D) & (p[None, :] < end)
            key = tl.load(keys + at[None, :] + d[:, None], mask=is_key, other=0.0)
            is_value = (p[:, None] < end) & (d[None, :] < D)
            value = tl.load(values + at[:, None] + d[None, :], mask=is_value, other=0.0)
        score = tl.dot(query, widened(key, query.dtype), input_precision="ieee")
        if HIDES:
            is_seen = p[None, :] <= position[:, None]
            if WINDOW > 0:
                is_seen = is_seen & (p[None, :] > position[:, None] - WINDOW)
            score = tl.where(is_seen, score, float("-inf"))
        better = tl.maximum(best, tl.max(score, 1) * scale)
        base = tl.where(better == float("-inf"), 0.0, better)
        # A compiler may join a product and a sum in one of the two loops only.
        weight = tl.exp2(tl.fma(score, scale, -base[:, None]))
        fade = tl.exp2(best - base)
        total = tl.fma(total, fade, tl.sum(weight, 1))
        mixed = mixed * fade[:, None]
        value = widened(value, query.dtype)
        mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision="ieee")
        best = better
    return mixed, best, total


@triton.jit(do_not_specialize=["SPLITS"])
def _attend_span(
    queries, keys, values, tables, tiles, out, sums, scale, SPLITS,
    TABLE: tl.constexpr, BLOCK: tl.constexpr, HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BD: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr,
    IS_SPLIT: tl.constexpr, WINDOW: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    # The last tiles of a span read the most, so they begin first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(tiles + 4 * tile)
    row = tl.load(tiles + 4 * tile + 1)
    start = tl.load(tiles + 4 * tile + 2)
    count = tl.load(tiles + 4 * tile + 3)
    # All queries see what is before `open`, and none what is at `end` or later.
    open = (start + 1) // CHUNK * CHUNK
    end = start + count
    first = 0
    if WINDOW > 0:
        first = tl.maximum(start - WINDOW + 1, 0) // CHUNK * CHUNK
        open = first
    split = tl.program_id(2)
    if IS_SPLIT:
        first = tl.maximum(first, split * SPLIT)
        end = tl.minimum(end, split * SPLIT + SPLIT)
        open = tl.minimum(tl.maximum(open, first), end)
    if first < end:
        i = tl.arange(0, ROWS)
        d = tl.arange(0, BD)
        is_row = i // G < count
        rows = row + i // G
        of_head = head * G + i % G
        at = (rows * HKV * G + of_head)[:, None].to(tl.int64) * D + d[None, :]
        inside = is_row[:, None] & (d[None, :] < D)
        query = tl.load(queries + at, mask=inside, other=0.0)
        position = start + i // G
        best = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, BD), tl.float32)
        table = tables + slot.to(tl.int64) * TABLE
        mixed, best, total = _mix_blocks(
            query, mixed, best, total, keys, values, table, head, position, scale, first, open,
            BLOCK, HKV, D, BD, CHUNK, WINDOW, False,
        )  # fmt: skip
        mixed, best, total = _mix_blocks(
            query, mixed, best, total, keys, values, table, head, position, scale, open, end,
            BLOCK, HKV, D, BD, CHUNK, WINDOW, True,
        )  # fmt: skip
        # Some rows see nothing of a split.
        total = tl.where(total > 0.0, total, 1.0)
        if IS_SPLIT:
            part = (rows * SPLITS + split) * HKV * G + of_head
            part_at = out + part[:, None].to(tl.int64) * D + d[None, :]
            tl.store(sums + part, best + tl.log2(total), mask=is_row)
            tl.store(part_at, mixed / total[:, None], mask=inside)
        else:
            mixed = mixed / total[:, None]
            tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The spans of a pass, cut into tiles."""

    places: torch.Tensor
    """[t, 4], of one slot each: the slot, the first row, its position, and how many rows, at most
    `tile_queries`, or none."""
    positions: torch.Tensor
    """[r]: the position of every row of the pass."""
    rows: range
    """The rows of all tiles."""
    length_max: int
    """No row sees more positions."""


def attend_spans(
    queries: torch.Tensor,
    cache: Cache,
    tables: torch.Tensor,
    tiles: Tiles,
    out: torch.Tensor,
    scale: float,
) -> None:
    """Writes attention of the rows of all tiles, of queries [r, q, d], to these rows of `out`.

    `tables` [slots, n] are the blocks of every slot.
    """
    _, block_tokens, key_heads, depth = cache.keys.shape
    count, heads = queries.shape[:2]
    group = heads // key_heads
    height = max(triton.next_power_of_2(tile_queries(group, depth) * group), DOT_MIN)
    padded = max(triton.next_power_of_2(depth), DOT_MIN)
    splits = triton.cdiv(tiles.length_max, SPAN_SPLIT)
    parts, sums = out, out
    if splits > 1:
        parts = queries.new_empty((count, splits, heads, depth), dtype=torch.float32)
        sums = queries.new_empty((count, splits, heads), dtype=torch.float32)
    _attend_span[(len(tiles.places), key_heads, splits)](
        queries, cache.keys, cache.values, tables, tiles.places, parts, sums, scale * LOG2_E,
        splits, tables.stride(0), block_tokens, key_heads, group, depth, height, padded,
        min(CHUNK, block_tokens), SPAN_SPLIT, splits > 1, cache.window,
        num_warps=8 if height >= TILE_ROWS // 2 else 4, num_stages=2, **launch_options(queries),
    )  # fmt: skip
    if splits > 1:
        join_splits(
            parts, sums, tiles.positions, out, tiles.rows, split=SPAN_SPLIT, window=cache.window
        )
