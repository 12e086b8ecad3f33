"""Weights of one byte for each number, in FP8 or int8, and a scale for each row.

Numbers are exact in bfloat16, and the scale is applied to the sums of a product. Those of FP8 are
powers of two: its small numbers are as exact as its large ones, and the model computes what it
would with these very values in bfloat16. Those of int8 are as small as they can be, because its
steps are equally large everywhere.

Tests: tests/unit/backends/torch/test_scaled_weight.py.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
NUMBERS = {"fp8": FP8, "int8": torch.int8}
"""The type of number for each value of the setting `quantization`."""
EXPONENT = 8
"""In FP8 the largest number of a row becomes at least half of two to this, and less than all of it.
The type ends at 448."""
EXPONENT_MIN = -100
"""Of a scale: smaller ones have no inverse in float32."""
SIDE_STEP = 16
"""Libraries multiply matrices whose sides are multiples of this."""
_ROWS = 4096
"""Rows that are rounded at a time, so that little memory is needed beside the weights."""


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A matrix [n, m]."""

    numbers: Tensor  # [n, m], in FP8 or int8
    scales: Tensor  # [n], float32

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return self.numbers.shape

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The matrix [n, m] in a wider type."""
        return self.numbers.to(dtype) * self.scales.to(dtype)[:, None]


Weight: TypeAlias = Tensor | ScaledWeight
"""A matrix, as it is or with scales."""


def scaled(matrix: Tensor, dtype: torch.dtype) -> Weight:
    """The matrix with numbers of this type; as it is where libraries could not multiply it."""
    if matrix.shape[0] % SIDE_STEP or matrix.shape[1] % SIDE_STEP:
        return matrix
    numbers = torch.empty(matrix.shape, dtype=dtype, device=matrix.device)
    scales = torch.empty(len(matrix), dtype=torch.float32, device=matrix.device)
    for some, into, scale in zip(
        matrix.split(_ROWS), numbers.split(_ROWS), scales.split(_ROWS), strict=True
    ):
        scale.copy_(_scales(some.abs().amax(1).float(), dtype))
        large = some.float() / scale[:, None]
        # A copy to integers would cut what is behind the point.
        into.copy_(large.round() if dtype == torch.int8 else large)
    return ScaledWeight(numbers, scales)


def _scales(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """The scale of each row with this largest number."""
    if dtype == torch.int8:
        return (largest / 127).clamp(min=2.0**EXPONENT_MIN)
    exponents = torch.frexp(largest).exponent - EXPONENT
    return torch.ldexp(torch.ones_like(largest), exponents.clamp(min=EXPONENT_MIN))
