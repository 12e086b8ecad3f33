"""Puts the rows of one inference together, sequence by sequence. Called by `backend` only."""

from collections.abc import Sequence

import numpy as np

from jitney.backends.openvino.graph import ROWS, Inputs

FILLER = 0
"""Any token works: its logits are not used."""

SIZES = ((16, 1), (64, 4), (128, 8), (512, 16))
"""Passes of up to so many rows have a multiple of so many; larger ones a multiple of SIZE_STEP."""
SIZE_STEP = 64


def filled_rows(row_count: int) -> int:
    """The size of a pass with so many rows.

    The library prepares itself for each size that it has not seen lately, about 10 ms on sixteen
    cores, and remembers some hundred and fifty. So there are few sizes.
    """
    step = next((step for most, step in SIZES if row_count <= most), SIZE_STEP)
    return -(-row_count // step) * step


class Packing:
    """The input of one inference. Sequences are added one by one."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._blocks: list[int] = []
        self._rows: list[int] = []
        self._lengths_past: list[int] = []
        self._span_begins, self._block_begins = [0], [0]

    @property
    def row_count(self) -> int:
        """Tokens so far."""
        return len(self._tokens)

    def add(
        self, tokens: Sequence[int], start: int, blocks: Sequence[int], rows_wanted: int
    ) -> None:
        """Add tokens of one sequence from a position on; the last `rows_wanted` need logits."""
        self._tokens += tokens
        self._positions += range(start, start + len(tokens))
        self._blocks += blocks
        self._rows += range(len(self._tokens) - rows_wanted, len(self._tokens))
        self._lengths_past.append(start)
        self._span_begins.append(len(self._tokens))
        self._block_begins.append(len(self._blocks))

    def inputs(self, rows_min: int) -> Inputs:
        """The whole input, with logits for at least `rows_min` rows. The wanted ones come first."""
        # A pass without wanted rows still computes one.
        rows = self._rows + [0] * (max(rows_min, 1) - len(self._rows))
        lengths = np.diff(self._span_begins) + self._lengths_past
        return {
            "input_ids": np.array(self._tokens, np.int64),
            "position_ids": np.array(self._positions, np.int64),
            "past_lens": np.array(self._lengths_past, np.int32),
            "subsequence_begins": np.array(self._span_begins, np.int32),
            "block_indices": np.array(self._blocks, np.int32),
            "block_indices_begins": np.array(self._block_begins, np.int32),
            "max_context_len": np.array(lengths.max(), np.int32),
            ROWS: np.array(rows, np.int64),
        }
