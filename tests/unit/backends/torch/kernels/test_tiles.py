"""The tile of a product."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")

from jitney.backends.torch.kernels.tiles import ROWS_MAX, same_tile, tile_of


@pytest.mark.parametrize("columns", [64, 4096, 6144, 28672, 128256])
def test_few_rows_fit_one_tile_and_many_go_to_the_library(columns: int) -> None:
    """With rows in two tiles the weights would be read twice."""
    for rows in (1, 16, 17, 32, 33, ROWS_MAX):
        tile = tile_of(rows, columns, 4096)
        assert tile is not None
        assert tile.rows >= rows
        assert tile_of(rows, columns, 4096, is_scaled=True) is not None
    assert tile_of(ROWS_MAX + 1, columns, 4096) is None
    assert tile_of(ROWS_MAX + 1, columns, 4096, is_scaled=True) is None


def test_few_columns_are_computed_in_parts() -> None:
    """Otherwise most of the GPU would have nothing to read."""
    assert same_tile(4096).parts > 1
    assert same_tile(128_256).parts == 1
