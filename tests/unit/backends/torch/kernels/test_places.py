"""Where rows are, and their tokens, against a loop over rows."""

import torch

from jitney.backends.torch.kernels.places import SAMPLED, place_rows


def test_a_row_without_a_token_takes_the_sampled_one() -> None:
    """A pass is sent before the tokens of the last one are known to the host."""
    torch.manual_seed(0)
    rows = torch.tensor([[2, 0, 1, 1], [5, 0, 8, 9], [SAMPLED, 7, 3, SAMPLED]], dtype=torch.int32)
    history = torch.randint(100, 200, (3, 12), dtype=torch.int32)
    before = history.clone()
    tables = torch.randperm(9).to(torch.int32).view(3, 3)
    tokens, cells = torch.zeros(2, 4, dtype=torch.int32).unbind()
    place_rows(rows, history, tables, 4, tokens, cells)
    assert tokens.tolist() == [int(before[2, 5]), 7, 3, int(before[1, 9])]
    want = [int(tables[slot, at // 4]) * 4 + at % 4 for slot, at, _ in rows.T.tolist()]
    assert cells.tolist() == want
    before[0, 0], before[1, 8] = 7, 3
    assert torch.equal(history, before)
