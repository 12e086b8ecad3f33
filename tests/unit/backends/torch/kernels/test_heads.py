"""Queries, keys and values from a product into a paged cache, against torch."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels.heads import Turn, rotate_and_store
from jitney.backends.torch.scaled_weight import FP8

HQ, HKV, D, ROWS = 6, 2, 16, 4


def _turned(x: torch.Tensor, turn: Turn, positions: torch.Tensor) -> torch.Tensor:
    if turn.cosines is None or turn.sines is None:
        return x
    cosine, sine = turn.cosines[positions][:, None], turn.sines[positions][:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def _normed(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def _turn(kind: str) -> Turn:
    angles = torch.rand(64, D // 2)
    cosines, sines = angles.cos(), angles.sin()
    if kind == "no positions":
        return Turn(None, None)
    if kind == "bias":
        return Turn(cosines, sines, bias=torch.randn((HQ + 2 * HKV) * D))
    if kind == "norms":
        return Turn(cosines, sines, query_norm=torch.randn(D), key_norm=torch.randn(D))
    return Turn(cosines, sines)


@pytest.mark.parametrize("kind", ["plain", "no positions", "bias", "norms"])
@pytest.mark.parametrize("part_count", [1, 2])
def test_queries_and_cells_are_those_of_torch(kind: str, part_count: int) -> None:
    """Each row goes to its own cell, values are neither normed nor turned, other cells stay."""
    torch.manual_seed(0)
    turn = _turn(kind)
    parts = torch.randn(part_count, ROWS, (HQ + 2 * HKV) * D)
    positions, cells = torch.tensor([0, 5, 33, 63]), torch.tensor([7, 2, 30, 16])
    whole = parts.sum(0) + (0 if turn.bias is None else turn.bias)
    q, k, v = whole.view(ROWS, -1, D).split([HQ, HKV, HKV], 1)
    keys, values = (torch.full((8, 4, HKV, D), -7.0) for _ in range(2))
    want_keys, want_values = keys.clone(), values.clone()
    want_keys.view(32, HKV, D)[cells] = _turned(_normed(k, turn.key_norm), turn, positions)
    want_values.view(32, HKV, D)[cells] = v
    got = rotate_and_store(parts, positions, cells, keys, values, turn, torch.float32)
    torch.testing.assert_close(got, _turned(_normed(q, turn.query_norm), turn, positions))
    torch.testing.assert_close(keys, want_keys)
    torch.testing.assert_close(values, want_values)


def test_keys_and_values_are_stored_in_fp8() -> None:
    """Numbers that FP8 holds: where it must round, the interpreter rounds wrongly."""
    torch.manual_seed(0)
    parts = torch.randint(-15, 16, (1, ROWS, (HQ + 2 * HKV) * D)).float()
    cells = torch.tensor([7, 2, 30, 16])
    keys, values = (torch.zeros(8, 4, HKV, D, dtype=FP8) for _ in range(2))
    nowhere = torch.zeros(ROWS, dtype=torch.int64)
    rotate_and_store(parts, nowhere, cells, keys, values, Turn(None, None), torch.float32)
    _, k, v = parts.view(ROWS, -1, D).split([HQ, HKV, HKV], 1)
    assert torch.equal(keys.view(32, HKV, D).float()[cells], k)
    assert torch.equal(values.view(32, HKV, D).float()[cells], v)
