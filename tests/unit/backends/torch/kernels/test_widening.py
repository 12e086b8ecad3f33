"""Products of many rows and weights in int8, against torch."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels import widening
from jitney.backends.torch.kernels.widening import multiply_widened
from jitney.backends.torch.scaled_weight import ScaledWeight, scaled


def test_the_library_multiplies_what_was_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, the last of them cut short; sums get the scales of their columns."""
    monkeypatch.setattr(widening, "_BLOCK", 1024)
    torch.manual_seed(0)
    matrix = torch.randn(32, 80) * 10.0 ** torch.arange(-16, 16)[:, None]
    x, weight = torch.randn(5, 80), scaled(matrix, torch.int8)
    assert isinstance(weight, ScaledWeight)
    wanted = x @ weight.numbers.float().T * weight.scales
    assert torch.equal(multiply_widened(x, weight), wanted)
