"""Unit tests of weights of one byte."""

import pytest

from tests.backends_for_tests import absence_reason

if reason := absence_reason("torch"):
    pytest.skip(reason, allow_module_level=True)

import torch

from jitney.backends.torch.scaled_weight import FP8, NUMBERS, ScaledWeight, scaled


@pytest.mark.parametrize("quantization", list(NUMBERS))
def test_each_number_is_the_nearest_one(quantization: str) -> None:
    """Rows of very different sizes, one of them of zeros: each has a scale of its own."""
    torch.manual_seed(0)
    matrix = torch.randn(32, 64) * 10.0 ** torch.arange(-16, 16)[:, None]
    matrix[3] = 0.0
    small = scaled(matrix, NUMBERS[quantization])
    assert isinstance(small, ScaledWeight)
    # Three bits after the first one, and fewer in numbers far below the largest; or equal steps.
    bound = matrix.abs() / 16 + small.scales[:, None] / 1024
    if quantization == "int8":
        bound = 0.501 * small.scales[:, None].expand_as(matrix)
    assert bool(((small.whole(torch.float32) - matrix).abs() <= bound).all())


def test_numbers_in_fp8_times_their_scales_are_exact_in_bfloat16() -> None:
    """Guards the meaning of FP8: what it computes, a model in bfloat16 computes too."""
    torch.manual_seed(1)
    small = scaled(torch.randn(16, 32), FP8)
    assert isinstance(small, ScaledWeight)
    assert torch.equal(small.whole(torch.bfloat16).float(), small.whole(torch.float32))


def test_what_libraries_could_not_multiply_stays_as_it_is() -> None:
    """Guards models with odd sides on a GPU."""
    for sides in ((24, 16), (16, 24)):
        matrix = torch.ones(sides)
        assert scaled(matrix, FP8) is matrix
