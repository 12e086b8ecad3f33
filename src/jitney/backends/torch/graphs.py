"""CUDA graphs of passes, one for each size: `PassGraphs`.

Enqueuing the kernels of a pass one by one takes the host longer than the GPU computes a small one.
Passes of decodes, with or without a few rows of prompts, are filled up to a size that has a graph.
A graph is captured when its size is first wanted, or ahead by `capture`, and then enqueued in one
call. Called by `device_passes` on the thread that runs batches.

Tests: tests/unit/backends/torch/kernels/test_graphs.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jitney.backends.torch.device_rows import Parcel, RowPacking
from jitney.backends.torch.kernels.decode_attention import SPLIT
from jitney.backends.torch.kernels.span_attention import SPAN_SPLIT

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
"""Decodes of the smaller graphs; larger ones have a multiple of SIZE_STEP."""
SIZE_STEP = 64

MIXED_SIZES = (0, 8, 32, 64, 128)
"""Decodes of the smaller graphs with rows of prompts: each has several graphs, so there are
fewer."""

SPAN_ROWS = (16, 64, 128, 256, 384, 512)
"""Rows of prompts in a graph. With more rows the GPU computes longer than the host enqueues."""
SPANS_MAX = 4
"""Spans in a graph. Each has one row of logits, and sees at most SPAN_SPLIT positions."""

LOGIT_ROWS_MIN = 256
"""A prompt that is scored has logits in every row: so many are made at a time."""


@dataclass(frozen=True, slots=True)
class PassSize:
    """What a pass is filled up to."""

    decodes: int
    span_rows: int
    length: int
    """No row sees more positions."""

    @property
    def rows(self) -> int:
        """All rows."""
        return self.decodes + self.span_rows

    @property
    def sampled(self) -> int:
        """Rows of logits."""
        return self.decodes + SPANS_MAX * (self.span_rows > 0)

    def tiles(self, step: int) -> int:
        """The most tiles of so many queries: each span may begin one, and what fills up too."""
        return -(-self.span_rows // step) + SPANS_MAX if self.span_rows else 0


LENGTH_STEP = 4
"""How much longer the sequences of the next graph are: programs for positions that a sequence does
not have take next to no time."""
LENGTH_AHEAD = LENGTH_STEP * SPLIT

Compute = Callable[[Parcel, int, int], tuple[Tensor, Tensor]]
"""Enqueues a pass: a parcel on the device, how many decodes, the longest sequence."""


def pass_size(decodes: int, length: int, spans: Sequence[int] = ()) -> PassSize | None:
    """The size of the graph for so many decodes and spans of so many rows; None where none has."""
    if not spans:
        return PassSize(_fitting(decodes, SIZES), 0, length_class(length))
    span_rows = next((size for size in SPAN_ROWS if size >= sum(spans)), None)
    if span_rows is None or len(spans) > SPANS_MAX or length > SPAN_SPLIT:
        return None
    return PassSize(_fitting(decodes, MIXED_SIZES), span_rows, SPAN_SPLIT)


def sizes_up_to(decodes: int) -> list[PassSize]:
    """The sizes of passes of up to so many decodes that are captured ahead, the largest first.

    Those of sequences of more than LENGTH_AHEAD come when they are wanted, and take 40 ms then.
    """
    lengths = (1, LENGTH_AHEAD)
    pure = {pass_size(count, length) for count in range(1, decodes + 1) for length in lengths}
    mixed = {pass_size(count, 1, (rows,)) for count in range(decodes + 1) for rows in SPAN_ROWS}
    found = [size for size in pure | mixed if size is not None]
    return sorted(found, key=lambda size: (size.rows, size.span_rows), reverse=True)


def logit_rows(decodes: int) -> int:
    """The most rows of logits at a time, of graphs of up to so many decodes and of other passes."""
    return max(LOGIT_ROWS_MIN, *(size.sampled for size in sizes_up_to(decodes)))


def length_class(length: int) -> int:
    """The length that a graph for sequences up to this one is made for."""
    found = SPLIT
    while found < length:
        found *= LENGTH_STEP
    return found


def _fitting(count: int, sizes: Sequence[int]) -> int:
    return next((size for size in sizes if size >= count), -(-count // SIZE_STEP) * SIZE_STEP)


@dataclass(frozen=True, slots=True)
class CapturedPass:
    """A graph, what it reads, and what it writes."""

    graph: torch.cuda.CUDAGraph
    parcel: Parcel
    logits: Tensor
    tokens: Tensor


class PassGraphs:
    """Passes of these sizes. Without a GPU each is computed as it comes."""

    def __init__(
        self, compute: Compute, filler: Callable[[PassSize], RowPacking], device: torch.device
    ) -> None:
        """`filler` gives a pass of this size that changes nothing."""
        self._compute = compute
        self._filler = filler
        self._device = device
        self._graphs: dict[PassSize, CapturedPass | None] = {}
        """None where there was no memory for one."""
        # Graphs never run at the same time, so they share their memory.
        is_gpu = device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if is_gpu else None
        self._stream = torch.cuda.Stream(device) if is_gpu else None

    def run(self, host: Parcel, size: PassSize) -> tuple[Tensor, Tensor]:
        """Enqueue a pass of this size; its logits and tokens, until the next run."""
        if self._stream is None:
            return self._compute(host, size.decodes, size.length)
        if size not in self._graphs:
            self._graphs[size] = self._captured_if_fits(size)
        made = self._graphs[size]
        if made is None:
            return self._compute(host.to(self._device), size.decodes, size.length)
        made.parcel.memory.copy_(host.memory, non_blocking=True)
        made.graph.replay()
        return made.logits, made.tokens

    def capture(self, size: PassSize) -> None:
        """Make the graph of this size. Raises OutOfMemoryError of the library."""
        if size not in self._graphs:
            self._graphs[size] = self._captured(self._ready(size), size)

    def _captured_if_fits(self, size: PassSize) -> CapturedPass | None:
        """The graph of this size; None where the pass fits and the memory of its graph does not."""
        try:
            return self._captured(self._ready(size), size)
        except torch.OutOfMemoryError:
            return None

    def _ready(self, size: PassSize) -> Parcel:
        """A pass of this size on the device, whose kernels are compiled: it was run."""
        parcel = self._filler(size).packed(self._device).to(self._device)
        self._compute(parcel, size.decodes, size.length)
        return parcel

    def _captured(self, parcel: Parcel, size: PassSize) -> CapturedPass:
        # Not by `torch.cuda.graph`: it collects garbage and returns all free memory before, and
        # passes would take long afterwards.
        assert self._stream is not None, "Only a GPU has graphs"
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                logits, tokens = self._compute(parcel, size.decodes, size.length)
            finally:
                graph.capture_end()
        return CapturedPass(graph, parcel, logits, tokens)
