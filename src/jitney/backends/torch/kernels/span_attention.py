"""`attend_spans`: causal attention of spans of prompts over their blocks.

A program computes a tile of queries of one span, all heads of one key head. It reads keys block by
block from position 0 on, so each row is computed alike however a prompt is divided into spans.

Tests: tests/unit/backends/torch/kernels/test_span_attention.py.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.decode_attention import CHUNK, Cache
from jitney.backends.torch.kernels.launch import launch_options

_LOG2_E = 1.4426950408889634
_DOT_MIN = 16

TILE_ROWS = 128
"""Pairs of a query and a head in one program."""

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
        score = tl.dot(query, key, input_precision="ieee")
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
        mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision="ieee")
        best = better
    return mixed, best, total


@triton.jit
def _attend_span(
    queries, keys, values, tables, tiles, out, scale,
    TABLE: tl.constexpr, BLOCK: tl.constexpr, HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BD: tl.constexpr, CHUNK: tl.constexpr,
    WINDOW: tl.constexpr, OVERLAPS: tl.constexpr,
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
    i = tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    is_row = i // G < count
    row = row + i // G
    at = ((row * HKV + head) * G + i % G)[:, None].to(tl.int64) * D + d[None, :]
    inside = is_row[:, None] & (d[None, :] < D)
    query = tl.load(queries + at, mask=inside, other=0.0)
    position = start + i // G
    # All queries see what is before `open`, and none what is at `end` or later.
    open = (start + 1) // CHUNK * CHUNK
    end = start + count
    first = 0
    if WINDOW > 0:
        first = tl.maximum(start - WINDOW + 1, 0) // CHUNK * CHUNK
        open = first
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
    # Rows that only fill a tile up have seen nothing.
    total = tl.where(is_row, total, 1.0)
    tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=inside)


def attend_spans(
    queries: torch.Tensor,
    cache: Cache,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    """Writes attention of the rows of all tiles, of queries [r, q, d], to these rows of `out`.

    `tables` [slots, n] are the blocks of every slot. `tiles` [t, 4] are of one slot each: the slot,
    the first row, its position, and how many rows, at most `tile_queries`, or none.
    """
    _, block_tokens, key_heads, depth = cache.keys.shape
    group = queries.shape[1] // key_heads
    rows = max(triton.next_power_of_2(tile_queries(group, depth) * group), _DOT_MIN)
    padded = max(triton.next_power_of_2(depth), _DOT_MIN)
    _attend_span[(len(tiles), key_heads)](
        queries, cache.keys, cache.values, tables, tiles, out, scale * _LOG2_E,
        tables.stride(0), block_tokens, key_heads, group, depth, rows, padded,
        min(CHUNK, block_tokens), cache.window,
        num_warps=8 if rows >= TILE_ROWS // 2 else 4, num_stages=2, **launch_options(queries),
    )  # fmt: skip
