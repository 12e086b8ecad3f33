"""The rows of one inference, without the library."""

import pytest

from tests.backends_for_tests import absence_reason

if reason := absence_reason("openvino"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.openvino.packing import Packing


def test_sequences_stand_one_after_the_other() -> None:
    """Guards begins, lengths and rows of every sequence."""
    packing = Packing()
    packing.add([5, 6, 7], 0, [4], 1)
    packing.add([8], 40, [1, 2], 1)
    packed = packing.packed(1)
    assert packed.tokens.tolist() == [5, 6, 7, 8]
    assert packed.positions.tolist() == [0, 1, 2, 40]
    assert packed.lengths_past.tolist() == [0, 40]
    assert packed.span_begins.tolist() == [0, 3, 4]
    assert packed.blocks.tolist() == [4, 1, 2]
    assert packed.block_begins.tolist() == [0, 1, 3]
    assert packed.length_max == 41
    assert packed.rows.tolist() == [2, 3]


@pytest.mark.parametrize(("rows_min", "rows"), [(1, [0]), (2, [0, 0]), (4, [0, 0, 0, 0])])
def test_the_head_has_as_many_rows_as_it_needs(rows_min: int, rows: list[int]) -> None:
    """Guards a single row of logits, which another kernel would compute."""
    packing = Packing()
    packing.add([5], 3, [0], 1)
    assert packing.packed(rows_min).rows.tolist() == rows
