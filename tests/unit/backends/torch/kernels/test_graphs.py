"""The sizes of graphs."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
from jitney.backends.torch.graphs import decode_size, length_class, sizes_up_to


def test_every_pass_has_a_graph_that_is_large_enough() -> None:
    """A pass that is larger than its graph would lose rows, and one far smaller wastes time."""
    sizes = sizes_up_to(600)
    for rows in range(1, 600):
        size = decode_size(rows)
        assert rows <= size <= max(2 * rows, rows + 64)
        assert decode_size(size) == size
        assert size in sizes
    for length in (1, 512, 513, 5000):
        assert length <= length_class(length) < 2 * max(length, 512)
