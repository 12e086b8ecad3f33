"""Packs a pass for the GPU: what the host says of its rows, as one piece of memory.

`DeviceRows` is what the kernels get. Called by `device_passes` on the thread that runs batches.

Tests: tests/unit/backends/torch/kernels/test_gpu_backend.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from jitney.backends.torch.kernels.choice import Draws
from jitney.backends.torch.pass_rows import PassRows

ALIGNMENT = 16
"""Kernels are compiled for pointers to multiples of this, and again for others."""

NO_CHANGE = (-1, 0)
"""What a row says of the table of its slot, where that stays as it is."""

Number = tuple[float, float, float, float]
Count = tuple[int, int]
Row = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows(PassRows):
    """What a pass computes, where the blocks of all slots stay on the device.

    Here `blocks` [slots, n] has a line for every slot, and `starts` and `counts` are not read.
    """

    slots: Tensor  # [r]: the slot of each row
    tiles: Tensor | None  # [t, 4]: slot, first row, its position, how many rows; None without spans
    length_max: int
    """No row sees more positions."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """The numbers of a pass in one piece of memory, on the host or on the device."""

    memory: Tensor
    rows: int
    sampled: int
    """Rows of logits, for each of which there is a draw."""
    tiles: int = 0

    def to(self, device: torch.device) -> "Parcel":
        """It on the device, where a copy is made in the order of the stream."""
        memory = self.memory.to(device, non_blocking=True)
        return Parcel(memory, self.rows, self.sampled, self.tiles)

    @property
    def draws(self) -> Draws:
        """How each row of logits is sampled."""
        numbers = self._part(0, 8, 4 * self.sampled).view(torch.float64)
        counts = self._part(1, 4, 2 * self.sampled).view(torch.int32)
        return Draws(numbers.view(-1, 4), counts.view(-1, 2))

    @property
    def places(self) -> Tensor:
        """[5, r], as `place_rows` takes it."""
        whole = self._part(2, 4, 5 * _rounded(self.rows, 4)).view(torch.int32)
        return whole.view(5, -1)[:, : self.rows]

    @property
    def spans(self) -> Tensor:
        """[t, 4]: tiles of spans."""
        return self._part(3, 4, 4 * self.tiles).view(torch.int32).view(-1, 4)

    @property
    def wanted(self) -> Tensor:
        """[l]: the rows of the pass that each row of logits is made of."""
        return self._part(4, 4, self.sampled).view(torch.int32)

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._begin(5)

    def _begin(self, part: int) -> int:
        """Where a part begins, in bytes."""
        sizes = (
            32 * self.sampled,
            8 * self.sampled,
            20 * _rounded(self.rows, 4),
            16 * self.tiles,
            4 * self.sampled,
        )
        return sum(_rounded(size, ALIGNMENT) for size in sizes[:part])

    def _part(self, part: int, width: int, count: int) -> Tensor:
        begin = self._begin(part)
        return self.memory[begin : begin + width * count]


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


class RowPacking:
    """Rows, tiles and draws, which are added one by one."""

    def __init__(self) -> None:
        self.tiles: list[tuple[int, int, int, int]] = []
        self.wanted: list[int] = []
        self.numbers: list[Number] = []
        self.counts: list[Count] = []
        self._rows: list[Row] = []
        self._arrays: list[npt.NDArray[np.int32]] = []
        self._stored = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._stored + len(self._rows)

    def add(self, row: Row, times: int = 1) -> None:
        """Add a row."""
        self._rows += [row] * times

    def add_span(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Add the rows of a part of a prompt: one by one they would take as long as the pass."""
        self._store_rows()
        rows = np.empty((len(tokens), 5), np.int32)
        rows[:, 0], rows[:, 3:] = slot, NO_CHANGE
        rows[:, 1], rows[:, 2] = np.arange(start, start + len(tokens)), tokens
        self._store(rows)

    def packed(self, device: torch.device) -> Parcel:
        """All of it in pinned memory, where there is a GPU."""
        self._store_rows()
        shape = (self.count, len(self.wanted), len(self.tiles))
        size = Parcel(torch.empty(0), *shape).size
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        parcel = Parcel(memory, *shape)
        _write(parcel.draws.numbers, self.numbers)
        _write(parcel.draws.counts, self.counts)
        if self._arrays:
            np.concatenate(self._arrays, out=parcel.places.numpy().T)
        _write(parcel.spans, self.tiles)
        _write(parcel.wanted, self.wanted)
        return parcel

    def _store_rows(self) -> None:
        if self._rows:
            self._store(np.array(self._rows, np.int32))
            self._rows = []

    def _store(self, rows: npt.NDArray[np.int32]) -> None:
        self._arrays.append(rows)
        self._stored += len(rows)


def _write(into: Tensor, values: Sequence[object]) -> None:
    if values:
        into.numpy()[:] = values
