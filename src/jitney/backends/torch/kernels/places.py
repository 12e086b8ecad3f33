"""`place_rows`: where the rows of a pass are, and their tokens, from what the host knows of them.

The history of a slot is its tokens by position, on the device. A sampled token is written there, so
a row whose token the host does not know yet finds it there.

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


@triton.jit
def _place_rows(
    slots, positions, given, history, tables, tokens, cells, R,
    LENGTH: tl.constexpr, TABLE: tl.constexpr, BLOCK: tl.constexpr, SAMPLED: tl.constexpr,
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
    at = history + slot * LENGTH + position
    token = tl.where(token == SAMPLED, tl.load(at, mask=inside, other=0), token)
    tl.store(at, token, mask=inside)
    tl.store(tokens + r, token, mask=inside)
    block = tl.load(tables + slot * TABLE + position // BLOCK, mask=inside, other=0)
    tl.store(cells + r, block * BLOCK + position % BLOCK, mask=inside)


def place_rows(
    rows: torch.Tensor,
    history: torch.Tensor,
    tables: torch.Tensor,
    block_tokens: int,
    tokens: torch.Tensor,
    cells: torch.Tensor,
) -> None:
    """Writes tokens and cells [r] of rows [3, r]: slots, positions, tokens or `SAMPLED`.

    `history` [slots, positions] gets the tokens; `tables` [slots, n] has the blocks of every slot.
    """
    count = rows.shape[1]
    slots, positions, given = rows.unbind()
    _place_rows[(triton.cdiv(count, _ROWS),)](
        slots, positions, given, history, tables, tokens, cells, count, history.stride(0),
        tables.stride(0), block_tokens, SAMPLED, _ROWS, num_warps=4, **launch_options(tokens),
    )  # fmt: skip
