"""`activate`: the gate of the hidden layer, SiLU or GELU of one half times the other half.

Tests: tests/unit/backends/torch/kernels/test_activation.py.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.architecture import Activation
from jitney.backends.torch.kernels.launch import launch_options

BLOCK = 1024


@triton.jit(do_not_specialize=["R"])
def _activate(
    parts, out, R,
    HALF: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, IS_SILU: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < HALF
    gate = tl.zeros((BLOCK,), tl.float32)
    up = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        at = parts + (part * R + row).to(tl.int64) * (2 * HALF) + i
        gate += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    if IS_SILU:
        gate = gate * tl.sigmoid(gate)
    else:
        # GELU by tanh, and tanh(u) by the sigmoid of 2u.
        bent = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(2 * bent)
    tl.store(out + row.to(tl.int64) * HALF + i, (gate * up).to(out.dtype.element_ty), mask=inside)


def activate(parts: torch.Tensor, activation: Activation, dtype: torch.dtype) -> torch.Tensor:
    """Gate and up [p, r, 2 i], gate first, to [r, i]."""
    part_count, rows, both = parts.shape
    width = both // 2
    out = parts.new_empty((rows, width), dtype=dtype)
    block = min(BLOCK, triton.next_power_of_2(width))
    _activate[(rows, triton.cdiv(width, block))](
        parts, out, rows, width, part_count, block, activation is Activation.SILU,
        num_warps=4, **launch_options(parts),
    )  # fmt: skip
    return out
