"""Products of rows and weights in FP8, against torch."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels.rounding import multiply_rounded, round_rows
from jitney.backends.torch.scaled_weight import FP8, ScaledWeight, scaled


def _exact(rows: int, width: int) -> torch.Tensor:
    """Numbers that FP8 holds: where it must round up, the interpreter rounds wrongly."""
    x = torch.randint(-15, 16, (rows, width)).float()
    return x * 2.0 ** torch.arange(-2 * rows, 2 * rows, 4)[:, None]


def test_rows_are_rounded_as_weights_are() -> None:
    """The scale of a row comes from the bits of its largest number."""
    torch.manual_seed(0)
    x = _exact(16, 48)
    wanted, found = scaled(x, FP8), round_rows(x)
    assert isinstance(wanted, ScaledWeight)
    assert torch.equal(found.scales, wanted.scales)
    assert torch.equal(found.whole(torch.float32), x)


def test_infinity_does_not_become_a_number() -> None:
    """FP8 has none, and a fault of a sequence would be answered with some token."""
    x = torch.zeros(3, 16)
    x[1, 2], x[2, 3] = torch.inf, torch.nan
    assert round_rows(x).scales.isnan().tolist() == [False, True, True]
    assert round_rows(x).whole(torch.float32)[0].tolist() == [0.0] * 16


def test_the_library_multiplies_what_was_rounded() -> None:
    """Guards the sides of the scales; bfloat16 is the type of the result."""
    torch.manual_seed(1)
    x, weight = _exact(16, 48), scaled(torch.randn(32, 48), FP8)
    assert isinstance(weight, ScaledWeight)
    wanted = x @ weight.whole(torch.float32).T
    try:
        found = multiply_rounded(x, weight)
    except RuntimeError as error:
        if "per-tensor" not in str(error):
            raise
        pytest.skip("needs a newer PyTorch, whose CPU knows a scale for each row")
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)
