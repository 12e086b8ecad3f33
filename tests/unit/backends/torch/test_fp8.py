"""Unit tests of weights in FP8."""

import pytest

from tests.backends_for_tests import absence_reason

if reason := absence_reason("torch"):
    pytest.skip(reason, allow_module_level=True)

import torch

from jitney.backends.torch.fp8 import Fp8Weight, rounded


def test_each_number_is_the_nearest_one() -> None:
    """Rows of very different sizes, one of them of zeros: each has a scale of its own."""
    torch.manual_seed(0)
    matrix = torch.randn(32, 64) * 10.0 ** torch.arange(-16, 16)[:, None]
    matrix[3] = 0.0
    small = rounded(matrix)
    assert isinstance(small, Fp8Weight)
    # Three bits after the first one; numbers far below the largest have fewer.
    bound = matrix.abs() / 16 + small.scales[:, None] / 1024
    assert bool(((small.whole(torch.float32) - matrix).abs() <= bound).all())
    assert torch.equal(small.whole(torch.bfloat16).float(), small.whole(torch.float32))


def test_what_libraries_could_not_multiply_stays_as_it_is() -> None:
    """Guards models with odd sides on a GPU."""
    for sides in ((24, 16), (16, 24)):
        matrix = torch.ones(sides)
        assert rounded(matrix) is matrix
