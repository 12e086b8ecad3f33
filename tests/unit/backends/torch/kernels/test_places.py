"""Where rows are, and their tokens, against a loop over rows."""

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels.places import SAMPLED, place_rows


def test_a_row_without_a_token_takes_the_sampled_one() -> None:
    """A pass is sent before the tokens of the last one are known to the host."""
    torch.manual_seed(0)
    rows = torch.tensor(
        [[2, 0, 1, 1], [5, 0, 8, 9], [SAMPLED, 7, 3, SAMPLED], [1, -1, -1, -1], [20, 0, 0, 0]],
        dtype=torch.int32,
    )
    sampled = torch.tensor([100, 101, 102], dtype=torch.int32)
    tables = torch.randperm(9).to(torch.int32).view(3, 3)
    tokens, cells = torch.zeros(2, 4, dtype=torch.int32).unbind()
    place_rows(rows, sampled, tables, 4, tokens, cells)
    assert tokens.tolist() == [102, 7, 3, 101]
    want = [int(tables[slot, at // 4]) * 4 + at % 4 for slot, at, *_ in rows.T.tolist()]
    assert tables[2, 1] == 20
    assert cells.tolist() == want
