"""CUDA graphs of passes of single tokens, one for each size: `DecodeGraphs`.

Enqueuing the kernels of a pass one by one takes the host longer than the GPU computes. A graph is
captured when its size is first wanted, or ahead by `capture`, and then enqueued in one call. Called
by `device_passes` on the thread that runs batches.

Tests: tests/unit/backends/torch/kernels/test_graphs.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from jitney.backends.torch.device_rows import Parcel, RowPacking
from jitney.backends.torch.kernels.decode_attention import SPLIT

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
"""Rows of the smaller graphs; larger ones have a multiple of SIZE_STEP."""
SIZE_STEP = 64

Compute = Callable[[Parcel, int, int], tuple[Tensor, Tensor]]
"""Enqueues a pass: a parcel on the device, how many decodes, the longest sequence."""


def decode_size(rows: int) -> int:
    """How many rows a pass of so many decodes is filled up to."""
    return next((size for size in SIZES if size >= rows), -(-rows // SIZE_STEP) * SIZE_STEP)


def sizes_up_to(rows: int) -> list[int]:
    """All sizes that passes of up to so many decodes have, the largest first."""
    return sorted({decode_size(each) for each in range(1, rows + 1)}, reverse=True)


def length_class(length: int) -> int:
    """The length that a graph for sequences up to this one is made for."""
    splits = -(-length // SPLIT)
    return SPLIT * (1 << (splits - 1).bit_length())


@dataclass(frozen=True, slots=True)
class CapturedPass:
    """A graph, what it reads, and what it writes."""

    graph: torch.cuda.CUDAGraph
    parcel: Parcel
    logits: Tensor
    tokens: Tensor


class DecodeGraphs:
    """Passes of single tokens. Without a GPU each is computed as it comes."""

    def __init__(
        self, compute: Compute, filler: Callable[[int], RowPacking], device: torch.device
    ) -> None:
        """`filler` gives a pass of so many rows that changes nothing."""
        self._compute = compute
        self._filler = filler
        self._device = device
        self._graphs: dict[tuple[int, int], CapturedPass] = {}
        # Graphs never run at the same time, so they share their memory.
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, host: Parcel, length_max: int) -> tuple[Tensor, Tensor]:
        """Enqueue a pass of `decode_size` rows; its logits and tokens, until the next run."""
        if self._device.type != "cuda":
            return self._compute(host, host.rows, length_max)
        made = self.capture(host.rows, length_class(length_max))
        made.parcel.memory.copy_(host.memory, non_blocking=True)
        made.graph.replay()
        return made.logits, made.tokens

    def capture(self, rows: int, length: int) -> CapturedPass:
        """The graph of this size. Its kernels are compiled by a run before it is captured."""
        if (rows, length) not in self._graphs:
            host = self._filler(rows).packed(self._device)
            parcel = Parcel(host.memory.to(self._device), host.rows, host.sampled)
            self._compute(parcel, rows, length)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                logits, tokens = self._compute(parcel, rows, length)
            self._graphs[rows, length] = CapturedPass(graph, parcel, logits, tokens)
        return self._graphs[rows, length]
