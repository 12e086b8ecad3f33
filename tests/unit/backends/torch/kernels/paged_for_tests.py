"""A paged cache with random tables, and plain attention over it, as a reference of the kernels."""

from dataclasses import dataclass

import torch

BLOCK, HKV, D = 16, 2, 16


@dataclass(frozen=True)
class Paged:
    """Keys and values [blocks, tokens, hkv, d], and the blocks of each sequence."""

    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor


def paged(
    sequences: int, blocks: int, *, depth: int = D, dtype: torch.dtype = torch.float32
) -> Paged:
    """Blocks in a random order. What no sequence has written is no number."""
    count = sequences * blocks
    keys, values = torch.randn(2, count, BLOCK, HKV, depth).to(dtype).unbind()
    tables = torch.randperm(count).to(torch.int32).view(sequences, blocks).contiguous()
    return Paged(keys.contiguous(), values.contiguous(), tables)


def forget_from(cache: Paged, sequence: int, length: int) -> None:
    """Put NaN where the sequence has no positions: nothing may be read there."""
    for cells in (cache.keys, cache.values):
        for position in range(length, cache.tables.shape[1] * BLOCK):
            block = int(cache.tables[sequence, position // BLOCK])
            cells[block, position % BLOCK] = torch.nan


def attention(
    cache: Paged, sequence: int, query: torch.Tensor, position: int, window: int = 0
) -> torch.Tensor:
    """Attention of one query [hq, d] at a position, in ten lines."""
    first = max(0, position + 1 - window) if window else 0
    blocks = cache.tables[sequence].long()
    group = query.shape[0] // HKV
    keys, values = (
        cells.float()[blocks].flatten(0, 1)[first : position + 1].repeat_interleave(group, 1)
        for cells in (cache.keys, cache.values)
    )
    scores = torch.einsum("hd,thd->ht", query, keys) * query.shape[-1] ** -0.5
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)
