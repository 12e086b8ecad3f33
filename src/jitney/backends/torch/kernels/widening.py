"""`widened`: numbers of one byte in a wider type, for other kernels; and `multiply_widened`: a
product with many rows and weights in int8, which the library does not multiply with bfloat16.

Tests: tests/unit/backends/torch/kernels/test_widening.py.
"""

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options
from jitney.backends.torch.scaled_weight import ScaledWeight

_BLOCK = 4096


@triton.jit
def widened(x, DTYPE: tl.constexpr):
    """x in this type, which is exact; x itself where it has it."""
    if x.dtype == tl.float8e4nv:
        # Straight to bfloat16 there is an instruction for each number, and it is slow.
        x = x.to(tl.float16).to(tl.float32)
    return x.to(DTYPE)


@triton.jit
def _widen(numbers, out, COUNT: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(numbers + at, mask=at < COUNT, other=0)
    tl.store(out + at, widened(number, out.dtype.element_ty), mask=at < COUNT)


def multiply_widened(x: torch.Tensor, weight: ScaledWeight) -> torch.Tensor:
    """x [r, m] times weight [n, m]: [r, n]. The library's allocator gives all layers one place for
    the widened matrix."""
    numbers = x.new_empty(weight.shape)
    _widen[(triton.cdiv(numbers.numel(), _BLOCK),)](
        weight.numbers, numbers, numbers.numel(), _BLOCK, num_warps=4, **launch_options(x)
    )
    return functional.linear(x, numbers).mul_(weight.scales)
