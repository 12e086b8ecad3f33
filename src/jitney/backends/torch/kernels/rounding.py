"""`multiply_rounded`: a product with many rows and weights in FP8, all of it in FP8.

Each row of the other side is rounded too, with a scale of its own, by a kernel; the product is the
library's. With many rows arithmetic is what takes the time, and in FP8 there is twice as much.

Tests: tests/unit/backends/torch/kernels/test_rounding.py.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options
from jitney.backends.torch.scaled_weight import EXPONENT, EXPONENT_MIN, FP8, ScaledWeight


@triton.jit
def _round_rows(
    x, numbers, scales, M: tl.constexpr, EXPONENT: tl.constexpr, EXPONENT_MIN: tl.constexpr,
    BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    m = tl.arange(0, BLOCK)
    inside = m < M
    value = tl.load(x + row * M + m, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.where(value == value, tl.abs(value), float("inf")))
    # The bits of a float32 hold its exponent, 126 larger, above the 23 of its fraction.
    exponent = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - 126 - EXPONENT, EXPONENT_MIN)
    scale = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
    inverse = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    tl.store(numbers + row * M + m, (value * inverse).to(numbers.dtype.element_ty), mask=inside)
    # FP8 has no infinity: the row must not become one of numbers.
    tl.store(scales + row, tl.where(largest < float("inf"), scale, float("nan")))


def round_rows(x: torch.Tensor) -> ScaledWeight:
    """The rows [r, m] in FP8, each with its scale."""
    rows, width = x.shape
    numbers = torch.empty(x.shape, dtype=FP8, device=x.device)
    scales = x.new_empty(rows, dtype=torch.float32)
    block = triton.next_power_of_2(width)
    _round_rows[(rows,)](
        x, numbers, scales, width, EXPONENT, EXPONENT_MIN, block,
        num_warps=min(max(block // 512, 1), 16), **launch_options(x),
    )  # fmt: skip
    return ScaledWeight(numbers, scales)


def multiply_rounded(x: torch.Tensor, weight: ScaledWeight) -> torch.Tensor:
    """x [r, m] times weight [n, m]: [r, n]."""
    rows = round_rows(x)
    # The library has row-wise scales for results in bfloat16 only.
    out: torch.Tensor = torch._scaled_mm(
        rows.numbers, weight.numbers.T, scale_a=rows.scales[:, None], scale_b=weight.scales[None],
        out_dtype=torch.bfloat16, use_fast_accum=x.is_cuda,
    )  # fmt: skip
    return out.to(x.dtype)
