"""`place_rows`: where the rows of a pass are, and their tokens, from what the host knows of them.

The token that was sampled last for a slot stays on the device, so a row whose token the host does
not know yet finds it there.

Tests: tests/unit/backends/torch/kernels/test_places.py.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options

SAMPLED = -1
"""Stands for the token that was sampled for this position."""

_ROWS = 128


@triton.jit(do_not_specialize=["R"])
def _place_rows(
    slots, positions, given, changed, blocks, sampled, tables, tokens, cells, R,
    TABLE: tl.constexpr, BLOCK: tl.constexpr, SAMPLED: tl.constexpr,
    ROWS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = r < R
    slot = tl.load(slots + r, mask=inside, other=0).to(tl.int64)
    position = tl.load(positions + r, mask=inside, other=0)
    token = tl.load(given + r, mask=inside, other=0)
    last = tl.load(sampled + slot, mask=inside, other=0)
    token = tl.where(token == SAMPLED, last, token)
    tl.store(tokens + r, token, mask=inside)
    index = tl.load(changed + r, mask=inside, other=-1)
    block = tl.load(blocks + r, mask=inside, other=0)
    table = tables + slot * TABLE
    tl.store(table + index, block, mask=inside & (index >= 0))
    before = tl.load(table + position // BLOCK, mask=inside, other=0)
    block = tl.where(index == position // BLOCK, block, before)
    tl.store(cells + r, block * BLOCK + position % BLOCK, mask=inside)


def place_rows(
    rows: torch.Tensor,
    sampled: torch.Tensor,
    tables: torch.Tensor,
    block_tokens: int,
    tokens: torch.Tensor,
    cells: torch.Tensor,
) -> None:
    """Writes tokens and cells [r] of rows [5, r]: slot, position, token or `SAMPLED`, and where the
    table of the slot has changed, or -1, and what is there now. No slot has two such rows.

    `sampled` [slots] are the last tokens; `tables` [slots, n] has the blocks of every slot.
    """
    count = rows.shape[1]
    slots, positions, given, changed, blocks = rows.unbind()
    _place_rows[(triton.cdiv(count, _ROWS),)](
        slots, positions, given, changed, blocks, sampled, tables, tokens, cells, count,
        tables.stride(0), block_tokens, SAMPLED, _ROWS, num_warps=4, **launch_options(tokens),
    )  # fmt: skip
