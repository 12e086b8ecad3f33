"""Weights in FP8: one byte for each number, and a scale for each row.

Scales are powers of two. So a number times its scale is exact in bfloat16 and in float32, and the
model computes what it would with these very values in bfloat16, wherever the scale is applied.

Tests: tests/unit/backends/torch/test_fp8.py.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

NUMBERS = torch.float8_e4m3fn
EXPONENT = 8
"""The largest number of a row becomes at least half of two to this, and less than all of it. The
type ends at 448."""
EXPONENT_MIN = -100
"""Of a scale: smaller ones have no inverse in float32."""
SIDE_STEP = 16
"""Libraries multiply matrices whose sides are multiples of this."""
_ROWS = 4096
"""Rows that are rounded at a time, so that little memory is needed beside the weights."""


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A matrix [n, m]."""

    numbers: Tensor  # [n, m], NUMBERS
    scales: Tensor  # [n], float32

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return self.numbers.shape

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The matrix [n, m] in a wider type."""
        return self.numbers.to(dtype) * self.scales.to(dtype)[:, None]


Weight: TypeAlias = Tensor | Fp8Weight
"""A matrix, as it is or in FP8."""


def rounded(matrix: Tensor) -> Weight:
    """The matrix in FP8; as it is where libraries could not multiply it."""
    if matrix.shape[0] % SIDE_STEP or matrix.shape[1] % SIDE_STEP:
        return matrix
    numbers = torch.empty(matrix.shape, dtype=NUMBERS, device=matrix.device)
    scales = torch.empty(len(matrix), dtype=torch.float32, device=matrix.device)
    for some, into, scale in zip(
        matrix.split(_ROWS), numbers.split(_ROWS), scales.split(_ROWS), strict=True
    ):
        exponents = torch.frexp(some.abs().amax(1).float()).exponent - EXPONENT
        torch.ldexp(torch.ones_like(scale), exponents.clamp(min=EXPONENT_MIN), out=scale)
        into.copy_(some.float() / scale[:, None])
    return Fp8Weight(numbers, scales)
