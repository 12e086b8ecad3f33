"""The rows of one inference, without the library."""

import pytest

from tests.backends_for_tests import absence_reason

if reason := absence_reason("openvino"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.openvino.packing import Packing, filled_rows


def test_sequences_stand_one_after_the_other() -> None:
    """Guards begins, lengths and rows of every sequence."""
    packing = Packing()
    packing.add([5, 6, 7], 0, [4], 1)
    packing.add([8], 40, [1, 2], 1)
    inputs = {name: array.tolist() for name, array in packing.inputs(1).items()}
    assert inputs == {
        "input_ids": [5, 6, 7, 8],
        "position_ids": [0, 1, 2, 40],
        "past_lens": [0, 40],
        "subsequence_begins": [0, 3, 4],
        "block_indices": [4, 1, 2],
        "block_indices_begins": [0, 1, 3],
        "max_context_len": 41,
        "rows": [2, 3],
    }


@pytest.mark.parametrize(("rows_min", "rows"), [(1, [0]), (2, [0, 0]), (4, [0, 0, 0, 0])])
def test_the_head_has_as_many_rows_as_it_needs(rows_min: int, rows: list[int]) -> None:
    """Guards a single row of logits, which another kernel would compute."""
    packing = Packing()
    packing.add([5], 3, [0], 1)
    assert packing.inputs(rows_min)["rows"].tolist() == rows


def test_passes_have_few_sizes() -> None:
    """Guards the time of a pass: the library prepares itself for each size that is new."""
    sizes = [filled_rows(count) for count in range(1, 2305)]
    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 100
    assert [filled_rows(count) for count in (1, 16, 17, 63, 65, 129, 513)] == (
        [1, 16, 20, 64, 72, 144, 576]
    )
