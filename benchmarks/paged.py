"""The floor on OpenVINO: the engine's own batches, replayed over a compiled model of its own.

The inputs of every pass are made before the clock starts; what is timed is the forward passes and
the largest logit of each wanted row: no scheduler, no sampler, no engine. The blocks are those that
the backend would have taken.
"""

import time
from pathlib import Path

import numpy as np

from jitney.backends.openvino.families import BLOCK_TOKENS
from jitney.backends.openvino.graph import ROWS, GraphShape, Inputs, PagedModel
from jitney.backends.shared.block_cells import BlockCells
from jitney.backends.shared.paging import BlockPool
from jitney.core.batch import Batch, MemoryOperation, Open, Release, Truncate


class PagedLoop:
    """The same model, compiled in the same way, with memory of its own."""

    def __init__(self, folder: Path, shape: GraphShape, blocks: int, slots: int) -> None:
        self._model = PagedModel(folder, shape, blocks)
        self._blocks = blocks
        self._slots = slots

    def run(self, batches: list[Batch]) -> float:
        """Seconds for all batches, which begin with empty slots."""
        # Only tables are kept here: nothing is shared, so no block is ever copied.
        cells = BlockCells((), BlockPool(self._slots, self._blocks, BLOCK_TOKENS))
        passes = []
        for batch in batches:
            for operation in batch.operations:
                _operate(cells, operation)
            if batch.entries:
                passes.append(_pack(cells, batch))
        started = time.perf_counter()
        for packed in passes:
            self._model.forward(packed).argmax(axis=1)
        return time.perf_counter() - started


def _operate(cells: BlockCells, operation: MemoryOperation) -> None:
    match operation:
        case Open():
            pass
        case Truncate():
            cells.truncate(operation.slot, operation.length)
        case Release():
            cells.truncate(operation.slot, 0)
        case _:
            raise RuntimeError(f"the load was to share nothing, and has {operation}")


def _pack(cells: BlockCells, batch: Batch) -> Inputs:
    entries = batch.entries
    tables = []
    for entry in entries:
        cells.grow(entry.slot, entry.length)
        tables.append(tuple(cells.blocks(entry.slot)))
    ends = np.cumsum([entry.length for entry in entries])
    wanted = [end - 1 for entry, end in zip(entries, ends, strict=True) if entry.wants_token]
    positions = [p for entry in entries for p in range(entry.start, entry.end)]
    return {
        "input_ids": np.array([token for entry in entries for token in entry.tokens], np.int64),
        "position_ids": np.array(positions, np.int64),
        "past_lens": np.array([entry.start for entry in entries], np.int32),
        "subsequence_begins": np.array([0, *ends], np.int32),
        "block_indices": np.array([block for table in tables for block in table], np.int32),
        "block_indices_begins": np.cumsum([0, *map(len, tables)], dtype=np.int32),
        "max_context_len": np.array(max(entry.end for entry in entries), np.int32),
        ROWS: np.array(wanted or [0], np.int64),
    }
