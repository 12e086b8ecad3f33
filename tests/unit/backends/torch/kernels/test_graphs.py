"""The sizes of graphs, and what happens where one cannot be captured."""

from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.device_rows import Parcel, RowPacking
from jitney.backends.torch.graphs import (
    SPAN_ROWS,
    SPANS_MAX,
    PassGraphs,
    PassSize,
    length_class,
    pass_size,
    sizes_up_to,
)
from jitney.backends.torch.kernels.span_attention import SPAN_SPLIT


def _size(decodes: int, spans: tuple[int, ...] = ()) -> PassSize:
    size = pass_size(decodes, 1, spans)
    assert size is not None
    return size


def test_every_pass_has_a_graph_that_is_large_enough() -> None:
    """A pass that is larger than its graph would lose rows, and one far smaller wastes time."""
    sizes = sizes_up_to(600)
    for rows in range(1, 600):
        size = _size(rows)
        assert rows <= size.rows == size.sampled <= max(2 * rows, rows + 64)
        assert _size(size.rows) == size
        assert size in sizes
    for length in (1, 512, 513, 5000):
        assert length <= length_class(length) < 4 * max(length, 512)


def test_a_few_rows_of_prompts_have_a_graph_too() -> None:
    """Spans may begin anywhere in a tile, so each may need one more, and so may what fills up."""
    for decodes in (0, 1, 9, 300):
        for spans in ((1,), (16,), (17, 40), (32,) * SPANS_MAX):
            size = _size(decodes, spans)
            assert size.decodes >= decodes
            assert size.span_rows >= sum(spans)
            assert size.sampled >= size.decodes + len(spans)
            filler = size.span_rows - sum(spans)
            for step in (16, 32, 128):
                assert size.tiles(step) >= sum(-(-rows // step) for rows in (*spans, filler))
    assert pass_size(1, 1, (1,) * (SPANS_MAX + 1)) is None
    assert pass_size(1, 1, (SPAN_ROWS[-1] + 1,)) is None
    assert pass_size(1, SPAN_SPLIT + 1, (1,)) is None, "there the attention of a span is split"


class _Captures:
    """Stands for the library: it notes captures, and in one there is no memory."""

    def __init__(self) -> None:
        self.begun, self.ended, self.passes = 0, 0, 0
        self.is_full = False
        """Whether the next pass finds no memory."""

    def capture_begin(self, **_: Any) -> None:
        self.begun += 1

    def capture_end(self) -> None:
        self.ended += 1

    def compute(self, parcel: Parcel, *_: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A pass."""
        if self.begun > self.ended or self.is_full:
            self.is_full = False
            raise torch.OutOfMemoryError("out of memory")
        self.passes += 1
        return parcel.places, parcel.places


def test_a_pass_whose_graph_has_no_memory_runs_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards work that goes on: a capture that is not ended would fail all that follows, and one
    that fails is not tried in every pass. At the start there is somebody to tell."""
    library = _Captures()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: library)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    graphs = PassGraphs(library.compute, lambda _: RowPacking(), torch.device("cpu"))
    monkeypatch.setattr(graphs, "_stream", "a stream")
    size, packing = PassSize(1, 0, 512), RowPacking()
    packing.add((0, 1, 2, 3, 4))
    host = packing.packed(torch.device("cpu"))
    for _ in range(2):
        places, _tokens = graphs.run(host, size)
        assert places.flatten().tolist() == [0, 1, 2, 3, 4]
    assert (library.begun, library.ended, library.passes) == (1, 1, 3)
    library.is_full = True
    places, _tokens = graphs.run(host, PassSize(4, 0, 512))
    assert places.flatten().tolist() == [0, 1, 2, 3, 4], "what fills it up had no memory"
    with pytest.raises(torch.OutOfMemoryError):
        graphs.capture(PassSize(2, 0, 512))
    assert library.ended == 2
