"""`add_and_norm`: adds the parts of the last product to the residual stream, and RMS norm of it.

One program a row. The sum is rounded to the type of the residual stream before the norm, as where
these are two steps.

Tests: tests/unit/backends/torch/kernels/test_norm.py.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options


@triton.jit(do_not_specialize=["R"])
def _add_and_norm(
    parts, residual, weight, out, R, eps,
    W: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    w = tl.arange(0, BLOCK)
    inside = w < W
    # A weight of the model: no kernel writes it.
    scale = tl.load(weight + w, mask=inside, other=0.0).to(tl.float32)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        at = parts + (part * R + row).to(tl.int64) * W + w
        x += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    at = residual + row.to(tl.int64) * W + w
    x += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    x = x.to(residual.dtype.element_ty).to(tl.float32)
    if PARTS > 0:
        tl.store(at, x.to(residual.dtype.element_ty), mask=inside)
    x = x * tl.rsqrt(tl.sum(x * x) / W + eps) * scale
    tl.store(out + row.to(tl.int64) * W + w, x.to(out.dtype.element_ty), mask=inside)


def add_and_norm(
    parts: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """The norm [r, w] of residual [r, w] plus parts [p, r, w]; the sum is kept in `residual`."""
    rows, width = residual.shape
    out = torch.empty_like(residual)
    part_count = 0 if parts is None else parts.shape[0]
    block = triton.next_power_of_2(width)
    _add_and_norm[(rows,)](
        out if parts is None else parts, residual, weight, out, rows, eps, width, part_count, block,
        num_warps=min(max(block // 512, 1), 16), **launch_options(out),
    )  # fmt: skip
    return out
