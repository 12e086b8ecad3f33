"""Which tile a product gets: `tile_of`. Found on an H200 by a search inside a whole decode step.

Few rows read all weights once, so what matters is that enough reads are under way: narrow tiles,
and parts of the depth where there are few columns. With many rows the library's products are
faster, and `tile_of` gives None. Weights of one byte are half as much to read, so they want more
reads under way; their tiles were found with FP8.

Tests: tests/unit/backends/torch/kernels/test_tiles.py.
"""

from dataclasses import replace

from jitney.backends.torch.kernels.product import Tile

ROWS_MAX = 64
"""With more rows the library's product is faster."""

WIDE = 16_384
"""Products of so many columns keep the GPU busy without parts of the depth."""

SAME_PARTS = 4


def tile_of(rows: int, columns: int, depth: int, *, is_scaled: bool = False) -> Tile | None:
    """The fastest tile for a product of this shape; None for the library's product."""
    if rows > ROWS_MAX:
        return None
    return (_tile_of_scaled if is_scaled else _tile_of_bfloat16)(rows, columns, depth)


def _tile_of_bfloat16(rows: int, columns: int, depth: int) -> Tile:
    if rows <= 16:
        if columns >= WIDE:
            step = 128 if columns < 4 * WIDE else 64
            return Tile(32 if step == 128 else 64, 128, 1, 4, 3)
        return Tile(32 if columns > depth else 64, 64 if columns > depth else 128, 4, 4, 4)
    height = 32 if rows <= 32 else 64
    if columns >= WIDE:
        return Tile(128, 128, 1, 4, 3, rows=height)
    if columns > depth:
        return Tile(32, 64, 2, 4, 5, rows=height)
    if columns < depth and height == 32:
        return Tile(64, 256, 4, 4, 3, rows=height)
    return Tile(64 if columns == depth else 32, 128, 2, 4, 4, rows=height)


def _tile_of_scaled(rows: int, columns: int, depth: int) -> Tile:
    tile = _tile_of_bfloat16(rows, columns, depth)
    if rows <= 16:
        # The same bytes of each row of weights; there is room for as many more of x.
        return replace(tile, depth=2 * tile.depth)
    if rows <= 32:
        if columns >= WIDE:
            return Tile(64, 128, 2, 4, 4, rows=32)
        return (
            Tile(64, 256, 4, 4, 3, rows=32) if columns > depth else Tile(64, 128, 4, 4, 4, rows=32)
        )
    if columns >= WIDE or columns == depth:
        return tile
    return Tile(128 if columns > depth else 64, 128, 4, 4, 3, rows=64)


def same_tile(columns: int) -> Tile:
    """The tile for any number of rows, where a row must be computed alike in every pass."""
    parts = 1 if columns >= WIDE else SAME_PARTS
    return Tile(64, 64, parts, 4, 4, rows=64)
