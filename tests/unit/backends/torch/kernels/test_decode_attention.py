"""Attention of new tokens over a paged cache, against plain attention."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels import decode_attention
from jitney.backends.torch.kernels.decode_attention import Cache, Sequences, attend_decodes
from jitney.backends.torch.scaled_weight import FP8
from tests.unit.backends.torch.kernels.paged_for_tests import (
    HKV,
    attention,
    forget_from,
    paged,
)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize(("split", "dtype"), [(64, torch.float32), (512, torch.float32), (64, FP8)])
def test_each_sequence_sees_its_own_positions(
    group: int, window: int, split: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths at the borders of blocks and splits; nothing beyond them may be read."""
    monkeypatch.setattr(decode_attention, "SPLIT", split)
    torch.manual_seed(0)
    lengths = [1, 64, 65, 130]
    cache = paged(len(lengths), 9, dtype=dtype)
    queries = torch.randn(6, group * HKV, 16)
    slots = torch.tensor([3, 0, 2, 1])
    for sequence, length in enumerate(lengths):
        forget_from(cache, int(slots[sequence]), length)
    out = torch.full_like(queries, -7.0)
    attend_decodes(
        queries, Cache(cache.keys, cache.values, window),
        Sequences(cache.tables, slots, torch.tensor(lengths) - 1, max(lengths)), out, 0.25,
        is_many=False,
    )  # fmt: skip
    for sequence, length in enumerate(lengths):
        want = attention(cache, int(slots[sequence]), queries[sequence], length - 1, window)
        torch.testing.assert_close(out[sequence], want)
    assert torch.all(out[4:] == -7.0)


def test_a_short_sequence_is_computed_alike_beside_a_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long one divides the pass into splits, and a short one is then one split."""
    monkeypatch.setattr(decode_attention, "SPLIT", 64)
    torch.manual_seed(1)
    cache, queries = paged(2, 9), torch.randn(2, HKV, 16)
    found = []
    for lengths in ([30, 1], [30, 130]):
        out = torch.zeros_like(queries)
        attend_decodes(
            queries, Cache(cache.keys, cache.values),
            Sequences(cache.tables, torch.arange(2), torch.tensor(lengths) - 1, max(lengths)), out,
            0.25, is_many=False,
        )  # fmt: skip
        found.append(out[0])
    assert torch.equal(*found)
