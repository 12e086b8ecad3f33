"""Products with few rows, against torch."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels.product import Tile, multiply
from jitney.backends.torch.scaled_weight import NUMBERS, ScaledWeight, scaled


@pytest.mark.parametrize("rows", [1, 3, 16, 21])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_parts_add_up_to_the_product(rows: int, parts: int) -> None:
    """Columns and depth that are no multiple of a tile must be neither lost nor read beyond."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 144), torch.randn(50, 144)
    got = multiply(x, weight, Tile(columns=32, depth=32, parts=parts), torch.float32)
    assert got.shape == (parts, rows, 50)
    torch.testing.assert_close(got.sum(0), x @ weight.T, atol=1e-4, rtol=1e-4)


def test_a_row_is_computed_alike_beside_any_others() -> None:
    """Equal texts rest on it: the tile is the same whatever the number of rows."""
    torch.manual_seed(1)
    x, weight = torch.randn(20, 64), torch.randn(32, 64)
    tile = Tile(columns=16, depth=16, parts=2)
    alone = multiply(x[7:8].contiguous(), weight, tile, torch.float32)
    beside = multiply(x, weight, tile, torch.float32)
    assert torch.equal(alone[:, 0], beside[:, 7])


@pytest.mark.parametrize("quantization", list(NUMBERS))
def test_weights_of_one_byte_give_the_sums_of_the_same_in_a_wider_type(quantization: str) -> None:
    """Only the rounding of the weights may change an answer: to the last bit, nothing else does."""
    torch.manual_seed(2)
    x, weight = torch.randn(5, 144), scaled(torch.randn(48, 144) * 0.02, NUMBERS[quantization])
    assert isinstance(weight, ScaledWeight)
    tile = Tile(columns=32, depth=32, parts=2)
    wanted = multiply(x, weight.numbers.float(), tile, torch.float32) * weight.scales
    assert torch.equal(multiply(x, weight, tile, torch.float32), wanted)
