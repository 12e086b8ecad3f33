"""The gate of the hidden layer, against torch."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch
from torch.nn.functional import gelu, silu

from jitney.backends.torch.architecture import Activation
from jitney.backends.torch.kernels.activation import activate


@pytest.mark.parametrize("part_count", [1, 2])
def test_both_activations_are_those_of_torch(part_count: int) -> None:
    """The gate is the first half, and the parts are added before it bends."""
    torch.manual_seed(0)
    parts = torch.randn(part_count, 3, 2 * 40)
    gate, up = parts.sum(0).chunk(2, -1)
    torch.testing.assert_close(activate(parts, Activation.SILU, torch.float32), silu(gate) * up)
    want = gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(activate(parts, Activation.GELU, torch.float32), want)
