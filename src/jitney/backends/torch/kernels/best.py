"""`best_tokens`: the largest logit of each row, and its column; the lowest column among equals.

As `jitney.sampling.sampler` asks, a row with something that is no number, or with infinity, has no
best token: its largest logit is reported as infinity. In two steps, so that one row keeps all of
the GPU busy.

Tests: tests/unit/backends/torch/kernels/test_best.py.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jitney.backends.torch.kernels.launch import launch_options

CHUNK = 4096


@triton.jit
def _best_of_chunk(
    logits, values, columns, STRIDE: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    n = chunk * CHUNK + tl.arange(0, CHUNK)
    at = logits + row.to(tl.int64) * STRIDE + n
    logit = tl.load(at, mask=n < N, other=float("-inf")).to(tl.float32)
    logit = tl.where(logit == logit, logit, float("inf"))
    value, column = tl.max(logit, 0, return_indices=True, return_indices_tie_break_left=True)
    to = row * tl.num_programs(1) + chunk
    tl.store(values + to, value)
    tl.store(columns + to, chunk * CHUNK + column)


@triton.jit
def _best_of_row(
    values, columns, best_value, best_column, COUNT: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(values + row * COUNT + i, mask=i < COUNT, other=float("-inf"))
    value, chunk = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_value + row, value)
    tl.store(best_column + row, tl.load(columns + row * COUNT + chunk))


def best_tokens(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each row of logits [r, n] in float32, and its column as int32."""
    rows, count = logits.shape
    chunks = triton.cdiv(count, CHUNK)
    values = logits.new_empty((rows, chunks), dtype=torch.float32)
    columns = logits.new_empty((rows, chunks), dtype=torch.int32)
    best_value = logits.new_empty(rows, dtype=torch.float32)
    best_column = logits.new_empty(rows, dtype=torch.int32)
    options = launch_options(logits)
    _best_of_chunk[(rows, chunks)](
        logits, values, columns, logits.stride(0), count, CHUNK, num_warps=8, **options
    )
    _best_of_row[(rows,)](
        values, columns, best_value, best_column, chunks, triton.next_power_of_2(chunks),
        num_warps=1, **options,
    )  # fmt: skip
    return best_value, best_column
