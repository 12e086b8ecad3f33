"""Causal attention of spans of prompts over a paged cache, against plain attention."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels import span_attention
from jitney.backends.torch.kernels.decode_attention import Cache
from jitney.backends.torch.kernels.span_attention import Tiles, attend_spans, tile_queries
from jitney.backends.torch.scaled_weight import FP8
from tests.unit.backends.torch.kernels.paged_for_tests import (
    HKV,
    Paged,
    attention,
    forget_from,
    paged,
)


def _attend(
    cache: Paged, queries: torch.Tensor, spans: list[tuple[int, int, int]], window: int = 0
) -> torch.Tensor:
    count = tile_queries(queries.shape[1] // HKV, queries.shape[2])
    tiles = [
        (slot, row + first, start + first, min(count, rows - first))
        for slot, (row, start, rows) in enumerate(spans)
        for first in range(0, rows, count)
    ]
    out = torch.full_like(queries, -7.0)
    positions = torch.zeros(len(queries), dtype=torch.int32)
    for row, start, rows in spans:
        positions[row : row + rows] = torch.arange(start, start + rows)
    of_spans = range(spans[0][0], max(row + rows for row, _, rows in spans))
    places = torch.tensor(tiles, dtype=torch.int32)
    attend_spans(
        queries, Cache(cache.keys, cache.values, window), cache.tables,
        Tiles(places, positions, of_spans, int(positions.max()) + 1), out,
        queries.shape[-1] ** -0.5,
    )  # fmt: skip
    return out


@pytest.mark.parametrize(
    ("group", "window", "depth", "split", "dtype"),
    [
        (1, 20, 16, 4096, torch.float32),
        (3, 0, 24, 4096, FP8),
        (1, 20, 16, 32, FP8),
        (3, 0, 24, 32, torch.float32),
    ],
)
def test_each_row_sees_what_is_before_it(
    group: int,
    window: int,
    depth: int,
    split: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spans at the borders of blocks, tiles and splits; a later position must never be seen."""
    monkeypatch.setattr(span_attention, "TILE_ROWS", 32)
    monkeypatch.setattr(span_attention, "SPAN_SPLIT", split)
    torch.manual_seed(0)
    spans = [(2, 0, 35), (37, 31, 2), (39, 64, 17)]
    cache = paged(3, 6, depth=depth, dtype=dtype)
    queries = torch.randn(58, group * HKV, depth)
    for index, (_, start, count) in enumerate(spans):
        forget_from(cache, index, start + count)
    out = _attend(cache, queries, spans, window)
    for index, (row, start, count) in enumerate(spans):
        for i in range(count):
            want = attention(cache, index, queries[row + i], start + i, window)
            torch.testing.assert_close(out[row + i], want, atol=1e-5, rtol=1e-4)
    assert torch.all(out[[0, 1, 56, 57]] == -7.0)


@pytest.mark.parametrize("split", [4096, 32])
def test_a_prompt_is_computed_alike_however_it_is_divided(
    split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler divides prompts by what else runs, and texts must not depend on that."""
    monkeypatch.setattr(span_attention, "TILE_ROWS", 32)
    monkeypatch.setattr(span_attention, "SPAN_SPLIT", split)
    torch.manual_seed(1)
    cache, queries = paged(1, 4), torch.randn(50, HKV, 16)
    whole = _attend(cache, queries, [(0, 0, 50)])
    for border in (1, 33):
        first = _attend(cache, queries[:border], [(0, 0, border)])
        rest = _attend(cache, queries[border:].contiguous(), [(0, border, 50 - border)])
        assert torch.equal(torch.cat([first, rest]), whole)
