"""Runs passes on the GPU: `DevicePasses`. A pass is enqueued, and its tokens come later.

Passes of single tokens and of a few rows of prompts are graphs (`graphs`); others are enqueued
kernel by kernel. Called by `gpu_backend` on the thread that runs batches.

Tests: tests/unit/backends/torch/kernels/test_gpu_backend.py.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jitney.backends.shared.slots import EntryRows
from jitney.backends.torch.device_memory import DeviceMemory, to_device
from jitney.backends.torch.device_rows import NO_CHANGE, DeviceRows, Parcel, RowPacking
from jitney.backends.torch.device_sampler import GREEDY, draw_of, is_on_device
from jitney.backends.torch.graphs import (
    SPAN_ROWS,
    PassGraphs,
    PassSize,
    logit_rows,
    pass_size,
    sizes_up_to,
)
from jitney.backends.torch.kernels.best import best_tokens
from jitney.backends.torch.kernels.choice import Draws, choose_tokens
from jitney.backends.torch.kernels.places import place_rows
from jitney.backends.torch.kernels.span_attention import SPAN_SPLIT, tile_queries
from jitney.backends.torch.kernels.triton_ops import TritonOps
from jitney.backends.torch.model import Decoder

NOBODY = -1
"""A slot that no token is kept for."""


@dataclass(frozen=True, slots=True)
class RunningPass:
    """A pass that was enqueued. What it writes may be read after `ended`."""

    rows: tuple[range, ...]
    """The rows of logits of each entry."""
    tokens: Tensor
    """[l] on the host: the token of each row of logits."""
    logits: Tensor
    """[h, v] on the host: the rows of the entries that the host samples, in their order."""
    begun: torch.cuda.Event | None
    ended: torch.cuda.Event | None

    def has_ended(self) -> bool:
        """Whether all of it may be read."""
        return self.ended is None or self.ended.query()

    def wait(self) -> None:
        """Wait until all of it may be read."""
        if self.ended is not None:
            self.ended.synchronize()

    def seconds(self) -> float:
        """How long the GPU computed."""
        return _seconds_between(self.begun, self.ended)

    def idle_s(self, before: torch.cuda.Event | None) -> float:
        """How long the GPU waited for it, since the end of the pass before it."""
        return _seconds_between(before, self.begun)


class DevicePasses:
    """Enqueues passes of one model."""

    def __init__(
        self,
        model: Decoder,
        ops: TritonOps,
        memory: DeviceMemory,
        vocabulary: int,
        decodes_max: int,
    ) -> None:
        self._model = model
        self._ops = ops
        self._memory = memory
        self._vocabulary = vocabulary
        self._decodes_max = decodes_max
        self._step = tile_queries(ops.shape.heads // ops.shape.heads_kv, ops.shape.head)
        # One for all passes, which run one after the other: each graph would keep its own, of
        # hundreds of megabytes.
        self._logits = model.head.new_empty((logit_rows(decodes_max), len(model.head)))
        self._graphs = PassGraphs(self._compute, self._filler, memory.device)

    def run(self, decodes: Sequence[EntryRows], others: Sequence[EntryRows]) -> RunningPass:
        """Enqueue a pass of these entries. Raises BackendFailed when memory is full."""
        length_max = max(each.entry.end for each in (*decodes, *others))
        size = None
        if not any(each.scored for each in others):
            size = pass_size(len(decodes), length_max, [len(each.tokens) for each in others])
        if size is not None and size.sampled > len(self._logits):
            size = None
        packing = RowPacking()
        rows = [self._add(packing, each, is_decode=True) for each in decodes]
        if size is not None:
            self._fill_decodes(packing, size)
        rows += [self._add(packing, each, is_decode=False) for each in others]
        if size is not None:
            self._fill_spans(packing, size)
        host = packing.packed(self._memory.device)
        of_host = [
            row
            for each, own in zip((*decodes, *others), rows, strict=True)
            if not is_on_device(each)
            for row in own
        ]
        copied = self._on_host((len(of_host), self._vocabulary), torch.float32)
        begun = self._event()
        if size is None:
            tokens = self._enqueue(host, len(decodes), length_max, of_host, copied)
        else:
            logits, tokens = self._graphs.run(host, size)
            _copy_rows(logits, of_host, copied)
        on_host = self._on_host(tokens.shape, tokens.dtype).copy_(tokens, non_blocking=True)
        return RunningPass(tuple(rows), on_host, copied, begun, self._event())

    def capture(self) -> None:
        """Make ready for passes of any number of decodes, and of a few rows of prompts."""
        if self._memory.device.type == "cuda":
            for size in sizes_up_to(self._decodes_max):
                self._graphs.capture(size)
            # Kernels for the longest prompts are compiled now, and not while others wait.
            host = self._filler(PassSize(0, SPAN_ROWS[0], 0)).packed(self._memory.device)
            self._enqueue(host, 0, 2 * SPAN_SPLIT, (), torch.empty(0))

    def drop(self) -> None:
        """Release the graphs, which hold this object. No pass may follow."""
        del self._graphs

    def _add(self, packing: RowPacking, each: EntryRows, *, is_decode: bool) -> range:
        """Add one entry; its rows of logits. Raises BackendFailed when memory is full."""
        entry, first, count = each.entry, packing.count, len(each.tokens)
        change = self._memory.grow(entry.slot, entry.start, count)
        if count == 1:
            packing.add((entry.slot, entry.start, each.tokens[0], *change))
        else:
            packing.add_span(entry.slot, entry.start, each.tokens)
        if not is_decode:
            self._add_tiles(packing, entry.slot, entry.start, range(first, first + count))
        # Graphs have logits of every row.
        wanted = 1 if is_decode else len(each.rows)
        begin = len(packing.wanted)
        packing.wanted += range(first + count - wanted, first + count)
        packing.numbers += [GREEDY] * wanted
        packing.counts += [(0, NOBODY)] * wanted
        if entry.wants_token and is_on_device(each):
            packing.numbers[-1], top_k = draw_of(each.contents.sampling, entry.end)
            packing.counts[-1] = (top_k, entry.slot)
        return range(begin, begin + wanted)

    def _add_tiles(self, packing: RowPacking, slot: int, start: int, rows: range) -> None:
        for at in range(0, len(rows), self._step):
            count = min(self._step, len(rows) - at)
            packing.tiles.append((slot, rows.start + at, start + at, count))

    def _filler(self, size: PassSize) -> RowPacking:
        packing = RowPacking()
        self._fill_decodes(packing, size)
        self._fill_spans(packing, size)
        return packing

    def _fill_decodes(self, packing: RowPacking, size: PassSize) -> None:
        first = packing.count
        self._fill_rows(packing, size.decodes)
        self._fill_wanted(packing, range(first, size.decodes))

    def _fill_spans(self, packing: RowPacking, size: PassSize) -> None:
        """Rows of the spare slot, tiles of no rows, and logits of the first row: nobody reads
        them."""
        first, spare = packing.count, self._memory.spare_slot
        self._fill_rows(packing, size.rows)
        # All begin at position 0: the table of a short slot has no blocks for later ones.
        for row in range(first, size.rows, self._step):
            packing.tiles.append((spare, row, 0, min(self._step, size.rows - row)))
        missing = size.tiles(self._step) - len(packing.tiles)
        packing.tiles += [(spare, 0, 0, 0)] * missing
        self._fill_wanted(packing, [0] * (size.sampled - len(packing.wanted)))

    def _fill_rows(self, packing: RowPacking, count: int) -> None:
        missing = count - packing.count
        packing.add((self._memory.spare_slot, 0, 0, *NO_CHANGE), missing)

    def _fill_wanted(self, packing: RowPacking, rows: Sequence[int]) -> None:
        packing.wanted += rows
        packing.numbers += [GREEDY] * len(rows)
        packing.counts += [(0, NOBODY)] * len(rows)

    def _enqueue(
        self, host: Parcel, decodes: int, length_max: int, of_host: Sequence[int], copied: Tensor
    ) -> Tensor:
        """The tokens [l] of a pass; the logits of the rows `of_host`, in order, go to `copied`.

        They are made and copied a part at a time: those of a scored prompt would take gigabytes.
        """
        parcel = host.to(self._memory.device)
        hidden = self._hidden(parcel, decodes, length_max)
        tokens = torch.empty(parcel.sampled, dtype=torch.int32, device=hidden.device)
        for first in range(0, parcel.sampled, len(self._logits)):
            logits = self._choose(parcel, hidden, tokens, first)
            begin, end = (bisect_left(of_host, at) for at in (first, first + len(logits)))
            _copy_rows(logits, [row - first for row in of_host[begin:end]], copied[begin:end])
        return tokens

    def _compute(self, parcel: Parcel, decodes: int, length_max: int) -> tuple[Tensor, Tensor]:
        """Logits [l, v], until the next pass writes over them, and tokens [l], of a graph."""
        hidden = self._hidden(parcel, decodes, length_max)
        tokens = torch.empty(parcel.sampled, dtype=torch.int32, device=hidden.device)
        return self._choose(parcel, hidden, tokens, 0), tokens

    def _hidden(self, parcel: Parcel, decodes: int, length_max: int) -> Tensor:
        """The hidden states [l, w] whose logits are wanted, of a parcel on the device."""
        memory, places = self._memory, parcel.places
        tokens = torch.empty(parcel.rows, dtype=torch.int32, device=places.device)
        cells = torch.empty_like(tokens)
        place_rows(places, memory.sampled, memory.tables, memory.block_tokens, tokens, cells)
        rows = DeviceRows(
            tokens=tokens, positions=places[1], cells=cells, blocks=memory.tables,
            starts=places[1], counts=places[1], wanted=parcel.wanted, decodes=decodes,
            slots=places[0], tiles=parcel.spans if parcel.tiles else None,
            length_max=length_max,
        )  # fmt: skip
        return self._model.hidden(rows, self._ops, wanted_only=parcel.tiles > 0)

    def _choose(self, parcel: Parcel, hidden: Tensor, tokens: Tensor, first: int) -> Tensor:
        """The logits [n, v] of as many rows as there is room for; their `tokens` are chosen."""
        some = slice(first, first + len(self._logits))
        logits = self._logits[: len(tokens[some])]
        self._ops.write_logits(hidden[some], self._model.head, logits)
        logits, draws = logits[:, : self._vocabulary], parcel.draws
        draws = Draws(draws.numbers[some], draws.counts[some])
        choose_tokens(logits, best_tokens(logits), draws, self._memory.sampled, tokens[some])
        return logits

    def _on_host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        is_pinned = self._memory.device.type == "cuda"
        return torch.empty(shape, dtype=dtype, pin_memory=is_pinned)

    def _event(self) -> torch.cuda.Event | None:
        if self._memory.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _copy_rows(logits: Tensor, rows: Sequence[int], into: Tensor) -> None:
    """Copy these rows to the host, in the order of the stream."""
    if rows:
        some = logits[to_device(torch.tensor(rows), logits.device)]
        into.copy_(some.float(), non_blocking=True)


def _seconds_between(first: torch.cuda.Event | None, second: torch.cuda.Event | None) -> float:
    if first is None or second is None:
        return 0.0
    milliseconds: float = first.elapsed_time(second)
    return max(milliseconds / 1e3, 0.0)
