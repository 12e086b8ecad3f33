"""The best token of each row, against torch."""

import math

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.kernels.best import CHUNK, best_tokens


def test_the_lowest_of_equal_columns_wins() -> None:
    """Greedy texts are the same as on any other backend only if ties go the same way."""
    torch.manual_seed(0)
    logits = torch.randint(-5, 5, (6, CHUNK + 300)).float()
    values, columns = best_tokens(logits)
    assert torch.equal(values, logits.max(-1).values)
    assert columns.tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_what_is_no_number_is_reported_as_infinity() -> None:
    """Such a row is a fault of its sequence, and no token may come of it."""
    logits = torch.zeros(3, CHUNK + 8)
    logits[0, CHUNK + 3] = torch.nan
    logits[1, 2] = torch.inf
    logits[2] = -torch.inf
    assert best_tokens(logits)[0].tolist() == [math.inf, math.inf, -math.inf]
