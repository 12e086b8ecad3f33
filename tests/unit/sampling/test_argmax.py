"""The largest logits of many rows are those of each row by itself."""

import numpy as np
import pytest

from jitney.sampling.argmax import PARALLEL_MIN, RowArgmax


@pytest.mark.parametrize("row_count", [1, 3, 7, 64])
@pytest.mark.parametrize("threads", [1, 4])
def test_many_rows_are_as_each_row_alone(row_count: int, threads: int) -> None:
    """Guards ties, NaN and infinity, with one thread and with several."""
    columns = PARALLEL_MIN // row_count + 1
    drawn = np.random.default_rng(row_count).integers(0, 50, (row_count, columns))
    logits = drawn.astype(np.float32)
    logits[0, 5:] = np.nan
    logits[row_count // 2, 7] = np.inf
    found = RowArgmax(threads)(logits)
    assert found == [int(row.argmax()) for row in logits]
    assert len(set(found)) > 1 or row_count == 1
