"""The largest logit of each row of a pass: `RowArgmax`.

256 rows of 50,000 logits are 50 MB. Reading them takes one core 5 ms, while the others have nothing
to do. Called on the thread that runs batches.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

PARALLEL_MIN = 2_000_000
"""With fewer logits, handing them to other threads takes longer than it saves."""


class RowArgmax:
    """Finds the largest logits with several threads, which start when they are first needed."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # The threads end when this object is not used any more.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="jitney-argmax")

    def __call__(self, logits: npt.NDArray[np.float32]) -> list[int]:
        """The column of the largest logit of each row: the first one, or that of the first NaN."""
        if self._threads == 1 or logits.size < PARALLEL_MIN:
            return _best(logits)
        parts = np.array_split(logits, self._threads)
        return [column for columns in self._pool.map(_best, parts) for column in columns]


def _best(logits: npt.NDArray[np.float32]) -> list[int]:
    # numpy lets other threads run meanwhile.
    columns: list[int] = logits.argmax(axis=1).tolist()
    return columns
