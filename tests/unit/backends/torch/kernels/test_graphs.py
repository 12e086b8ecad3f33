"""The sizes of graphs."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
from jitney.backends.torch.graphs import (
    SPAN_ROWS,
    SPANS_MAX,
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
