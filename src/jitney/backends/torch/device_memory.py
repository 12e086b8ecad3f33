"""What stays on the GPU between passes: cells, the blocks of every slot, and its last token.

Called by `gpu_backend` on the thread that runs batches. Everything is enqueued in the order of the
stream and nobody waits: what the host hands over is copied to pinned memory first. Saved cells are
in pinned memory of the host.

Tests: tests/unit/backends/torch/kernels/test_gpu_backend.py.
"""

import torch
from torch import Tensor

from jitney.backends.shared.paging import BlockPool
from jitney.backends.torch.block_cells import BlockCells
from jitney.backends.torch.device_rows import NO_CHANGE
from jitney.backends.torch.model import Decoder


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, which is made in the order of the stream."""
    if device.type == "cpu":
        return values.clone()
    return values.pin_memory().to(device, non_blocking=True)


class DeviceCells(BlockCells):
    """Implements `jitney.backends.shared.slots.Cells`; saved cells leave the GPU."""

    def save(self, slot: int) -> Tensor:
        """A copy of the slot's blocks, layer after layer, in memory of the host."""
        blocks = self._places(slot)
        size = (len(self._caches), len(blocks), *self._caches[0].shape[1:])
        is_pinned = blocks.is_cuda
        saved = torch.empty(size, dtype=self._caches[0].dtype, pin_memory=is_pinned)
        for cache, into in zip(self._caches, saved, strict=True):
            into.copy_(cache[blocks], non_blocking=True)
        return saved

    def restore(self, slot: int, state: Tensor, length: int) -> None:
        """Write a saved copy into blocks of the empty slot."""
        self._pool.grow(slot, length)
        blocks = self._places(slot)
        for cache, saved in zip(self._caches, state, strict=True):
            cache[blocks] = saved.to(blocks.device, non_blocking=True)

    def _places(self, slot: int) -> Tensor:
        device = self._caches[0].device
        return to_device(torch.tensor(self._pool.blocks[slot]), device)


class DeviceMemory:
    """The memory of all slots. There is one slot more, with one block, for rows that only fill."""

    def __init__(self, model: Decoder, slots: int, blocks: int, slot_tokens_max: int) -> None:
        keys = model.layers[0].keys
        self.device = keys.device
        self.block_tokens = keys.shape[1]
        self.spare_slot, self.spare_block = slots, blocks
        self.cells = DeviceCells(
            (cache for layer in model.layers for cache in (layer.keys, layer.values)),
            BlockPool(slots, blocks, self.block_tokens),
        )
        width = -(-slot_tokens_max // self.block_tokens) + 1
        whole = {"dtype": torch.int32, "device": self.device}
        self.tables = torch.full((slots + 1, width), self.spare_block, **whole)
        """[slots + 1, n]: the blocks of every slot."""
        self.sampled = torch.zeros(slots + 1, **whole)
        """[slots + 1]: the token sampled last for every slot; the host may still wait for it."""
        self._known: list[list[int]] = [[] for _ in range(slots)]

    def grow(self, slot: int, start: int, count: int) -> tuple[int, int]:
        """Take room for `count` tokens; a change of the table that a pass of one token can carry.

        Other changes are made at once. Raises BackendFailed when memory is full.
        """
        self.cells.grow(slot, count)
        blocks, known = self.cells.blocks(slot), self._known[slot]
        if blocks == known:
            return NO_CHANGE
        same = min(len(blocks), len(known))
        first = next((at for at in range(same) if blocks[at] != known[at]), same)
        self._known[slot] = blocks.copy()
        if first == len(blocks):
            return NO_CHANGE  # a block less
        if count == 1 and first == len(blocks) - 1 == start // self.block_tokens:
            return first, blocks[first]
        new = to_device(torch.tensor(blocks[first:], dtype=torch.int32), self.device)
        self.tables[slot, first : len(blocks)] = new
        return NO_CHANGE

    def forget_tables(self) -> None:
        """Write every table anew when its slot grows: a pass that failed may have carried a change
        of one and never ran."""
        self._known = [[] for _ in self._known]

    def drop(self) -> None:
        """Release the memory. Nobody may read or write it after this."""
        self.cells.drop()
        self.tables = self.sampled = torch.empty(0)
