"""Unit tests of the rows of a pass: positions, cells, tables, and rows that fill up."""

import pytest

from tests.backends_for_tests import absence_reason

if reason := absence_reason("torch"):
    pytest.skip(reason, allow_module_level=True)

import torch

from jitney.backends.torch.pass_rows import Span, pack


def test_each_row_knows_its_place() -> None:
    """Guards every number: one that is wrong reads or writes the memory of another sequence."""
    spans = [Span([7], 5, [2, 9], 1), Span([1, 2, 3], 3, [4, 6], 2), Span([8], 0, [3], 0)]
    rows = pack(
        spans,
        decodes=1,
        row_count=8,
        block_tokens=4,
        spare_block=20,
        device=torch.device("cpu"),
    )
    assert rows.tokens.tolist() == [7, 1, 2, 3, 8, 0, 0, 0]
    assert rows.positions.tolist() == [5, 3, 4, 5, 0, 0, 0, 0]
    assert rows.cells.tolist() == [37, 19, 24, 25, 12, 80, 80, 80]
    assert rows.blocks.tolist() == [[2, 9], [4, 6], [3, 20]]
    assert rows.starts.tolist() == [5, 3, 0]
    assert rows.counts.tolist() == [1, 3, 1]
    assert rows.wanted.tolist() == [0, 2, 3]
    assert rows.decodes == 1
