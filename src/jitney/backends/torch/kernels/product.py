"""`multiply`: a product with few rows, which is bound by the reading of the weights.

The depth is divided into parts, so that all of the GPU reads at once. Each part is written, and the
kernel that uses the product adds the parts in their order: atomic additions would give another sum
in every run. Nothing depends on the number of rows but `M`, so with one tile for all sizes a
row is computed alike in every batch.

Tests: tests/unit/backends/torch/kernels/test_product.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options
from jitney.backends.torch.kernels.widening import widened
from jitney.backends.torch.scaled_weight import ScaledWeight, Weight

ROWS_TILE_MIN = 16
"""The fewest rows of a tile: those of a matrix instruction."""

_PREFETCH = tl.constexpr("cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, $2;")


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a product that one program computes at a time, and how."""

    columns: int
    depth: int
    parts: int
    warps: int = 4
    stages: int = 4
    rows: int = ROWS_TILE_MIN
    prefetch_bytes: int = 0
    """How much of each row of weights is asked for before the last kernel has ended."""


@triton.jit(do_not_specialize=["R"])
def _multiply(
    x, weight, scales, out, R, N: tl.constexpr, K: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    IS_SCALED: tl.constexpr, PREFETCH: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    steps: tl.constexpr = (K + BK * PARTS - 1) // (BK * PARTS)
    even_k: tl.constexpr = K % (BK * PARTS) == 0
    even_n: tl.constexpr = N % BN == 0
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    first = part * steps * BK
    # Columns beyond the last are computed from the last, and not stored.
    columns = weight + tl.minimum(n, N - 1).to(tl.int64) * K
    if OVERLAPS:
        if PREFETCH > 0:
            tl.inline_asm_elementwise(
                _PREFETCH, "=r,l,r",
                [(columns + first).to(tl.int64), tl.full((BN,), PREFETCH, tl.int32)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        gdc_wait()
        gdc_launch_dependents()
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    sums = tl.zeros((BR, BN), tl.float32)
    for step in range(steps):
        k = first + step * BK + tl.arange(0, BK)
        if even_k:
            a = tl.load(x + r[:, None] * K + k[None, :], mask=r[:, None] < R, other=0.0)
            b = tl.load(columns[None, :] + k[:, None], eviction_policy="evict_first")
        else:
            inside = (r[:, None] < R) & (k[None, :] < K)
            a = tl.load(x + r[:, None] * K + k[None, :], mask=inside, other=0.0)
            b = tl.load(columns[None, :] + k[:, None], mask=k[:, None] < K, other=0.0)
        sums = tl.dot(a, widened(b, a.dtype), sums, input_precision="ieee")
    if IS_SCALED:
        sums = sums * tl.load(scales + tl.minimum(n, N - 1))[None, :]
    at = out + (part * R + r[:, None]).to(tl.int64) * N + n[None, :]
    stored = r[:, None] < R
    if not even_n:
        stored = stored & (n[None, :] < N)
    tl.store(at, sums.to(out.dtype.element_ty), mask=stored)


def multiply(
    x: torch.Tensor,
    weight: Weight,
    tile: Tile,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The parts [p, r, n] of x [r, m] times weight [n, m], in `out` if given; their sum is it.

    Weights of one byte are widened, which is exact, and sums get their scale.
    """
    rows, depth = x.shape
    columns = weight.shape[0]
    assert weight.shape[1] == depth, f"{weight.shape} does not fit {x.shape}"
    numbers = weight.numbers if isinstance(weight, ScaledWeight) else weight
    # Without scales, something that is there.
    scales = weight.scales if isinstance(weight, ScaledWeight) else weight
    if out is None:
        out = x.new_empty((tile.parts, rows, columns), dtype=dtype)
    slice_bytes = -(-depth // (tile.depth * tile.parts)) * tile.depth * numbers.element_size()
    has_whole_slices = depth % (tile.depth * tile.parts) == 0
    prefetch = min(tile.prefetch_bytes, slice_bytes) if has_whole_slices else 0
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns), tile.parts)
    _multiply[grid](
        x, numbers, scales, out, rows, columns, depth, tile.rows, tile.columns, tile.depth,
        tile.parts, numbers is not scales, prefetch, num_warps=tile.warps, num_stages=tile.stages,
        **launch_options(x),
    )  # fmt: skip
    return out
