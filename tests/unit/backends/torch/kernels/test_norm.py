"""The norm with the parts of the last product, against torch."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels.norm import add_and_norm


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


@pytest.mark.parametrize("part_count", [0, 1, 3])
def test_parts_go_to_the_residual_stream_before_the_norm(part_count: int) -> None:
    """The stream must keep the sum, or every later layer computes with an old one."""
    torch.manual_seed(0)
    parts = torch.randn(part_count, 5, 48) if part_count else None
    residual, weight = torch.randn(5, 48), torch.randn(48)
    want = residual + (0 if parts is None else parts.sum(0))
    got = add_and_norm(parts, residual, weight, 1e-5)
    torch.testing.assert_close(residual, want)
    torch.testing.assert_close(got, _norm(want, weight))
