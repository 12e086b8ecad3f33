"""The operations of the model in plain PyTorch: for the CPU, and the reference of all kernels.

One thread calls it. Libraries choose a kernel by the shape of its input, and each kernel rounds in
its own way. So the shapes here do not depend on what else is in the pass (invariant 4): products
take `tile` rows at a time, and attention reads keys in chunks of one size, whose sums are added in
their order. Queries of a span are computed in tiles that begin at multiples of `QUERY_TILE`,
wherever the span begins. Decodes have a shape of their own, so they are rounded differently.

Tests: tests/unit/backends/torch/test_plain_ops.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from jitney.backends.torch.architecture import Activation, Architecture
from jitney.backends.torch.model import Layer
from jitney.backends.torch.pass_rows import PassRows
from jitney.backends.torch.scaled_weight import ScaledWeight, Weight

QUERY_TILE = 64
"""Queries of a span that are computed together."""
KEY_CHUNK = 64
"""Keys whose products are added up in one piece."""
DECODES_TOGETHER = 16
"""Sequences whose keys are gathered at once: they take memory beside the model."""


@dataclass(frozen=True, slots=True)
class PlainOps:
    """Implements `jitney.backends.torch.model.Operations`; shapes are explained there."""

    shape: Architecture
    tile: int = 0
    """Products take so many rows at a time, and a pass is a multiple of it; 0 means all at once."""

    def norm(
        self, parts: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float
    ) -> Tensor:
        """Add the parts to the residual stream in place; its RMS norm."""
        if parts is not None:
            residual += _sum(parts)
        return _rms_norm(residual, weight, epsilon)

    def product(self, x: Tensor, weight: Weight) -> Tensor:
        """x [r, m] times weight [n, m], as one part [1, r, n]."""
        if isinstance(weight, ScaledWeight):
            return self.product(x, weight.numbers.to(x.dtype)).mul_(weight.scales)
        out = x.new_empty(len(x), len(weight))
        tile = self.tile or len(x)
        for some, into in zip(x.split(tile), out.split(tile), strict=True):
            torch.mm(some, weight.T, out=into)
        return out[None]

    def rotate_and_store(self, parts: Tensor, layer: Layer, rows: PassRows) -> Tensor:
        """Queries [r, q, d]; keys and values go to their cells."""
        x = _sum(parts)
        if layer.qkv_bias is not None:
            x = x + layer.qkv_bias
        counts = (self.shape.heads, self.shape.heads_kv, self.shape.heads_kv)
        queries, keys, values = x.unflatten(1, (-1, self.shape.head)).split(counts, 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = _rms_norm(queries, layer.query_norm, self.shape.epsilon)
            keys = _rms_norm(keys, layer.key_norm, self.shape.epsilon)
        if layer.cosines is not None and layer.sines is not None:
            cosines = layer.cosines[rows.positions][:, None]  # [r, 1, d / 2]
            sines = layer.sines[rows.positions][:, None]
            queries, keys = _rotate(queries, cosines, sines), _rotate(keys, cosines, sines)
        for cells, heads in ((layer.keys, keys), (layer.values, values)):
            # Another sequence will have these cells, and what it does not see yet counts 0 times:
            # of infinity that would be no number. FP8 has none, and ends at 448.
            most = torch.finfo(cells.dtype).max
            finite = heads.float().nan_to_num().clamp(-most, most)
            cells.flatten(0, 1)[rows.cells] = finite.to(cells.dtype)
        return queries

    def attend(self, queries: Tensor, layer: Layer, rows: PassRows) -> Tensor:
        """What each row sees of its own sequence up to itself, mixed: [r, q d]."""
        mixed = torch.zeros_like(queries)
        first = rows.decodes
        for at in range(0, first, DECODES_TOGETHER):
            some = slice(at, min(at + DECODES_TOGETHER, first))
            starts, blocks = rows.starts[some], rows.blocks[some]
            found = self._mix(queries[some, None], starts, starts + 1, blocks, layer)
            mixed[some] = found[:, 0]
        for index in range(first, len(rows.starts)):
            start, count = int(rows.starts[index]), int(rows.counts[index])
            span = slice(first, first + count)
            mixed[span] = self._mix_span(queries[span], start, rows.blocks[index], layer)
            first += count
        return mixed.flatten(1)

    def activate(self, parts: Tensor) -> Tensor:
        """The activation of the gate times the other half: [r, i]."""
        gate, up = _sum(parts).chunk(2, dim=1)
        if self.shape.activation is Activation.SILU:
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh") * up

    def _mix_span(self, queries: Tensor, start: int, blocks: Tensor, layer: Layer) -> Tensor:
        """The rows of one span, tile by tile: [t, q, d] to [t, q, d]."""
        lead, end = start % QUERY_TILE, start + len(queries)
        filled = functional.pad(queries, (0, 0, 0, 0, lead, -end % QUERY_TILE))
        starts = torch.arange(start - lead, end, QUERY_TILE, device=queries.device)
        ends = blocks.new_tensor([end])
        tiles = [
            self._mix(tile[None], at, ends, blocks[None], layer)[0]
            for tile, at in zip(filled.split(QUERY_TILE), starts.split(1), strict=True)
        ]
        return torch.cat(tiles)[lead : lead + len(queries)]

    def _mix(
        self, queries: Tensor, starts: Tensor, ends: Tensor, blocks: Tensor, layer: Layer
    ) -> Tensor:
        """Queries [s, t, q, d] from positions `starts` [s] on, each with the keys that it sees.

        The keys of a sequence are in its blocks [s, n]; those from `ends` [s] on are not there yet.
        With m chunks of e keys: the products of a chunk have the same shape for every sequence and
        every length.
        """
        length, block_tokens = queries.shape[1], layer.keys.shape[1]
        places = starts[:, None] + torch.arange(length, device=starts.device)  # [s, t]
        # What fills a tile up sees what the last query does.
        places = places.minimum(ends[:, None] - 1)
        blocks = blocks[:, : int(places.max()) // block_tokens + 1]
        chunk_blocks = KEY_CHUNK // block_tokens
        blocks = functional.pad(blocks, (0, -blocks.shape[1] % chunk_blocks))
        chunked = blocks.unflatten(1, (-1, chunk_blocks))  # [s, m, blocks of a chunk]
        keys, values = (
            cells.index_select(0, chunked.flatten()).view(*chunked.shape[:2], -1, *cells.shape[2:])
            for cells in (layer.keys, layer.values)
        )  # [s, m, e, k, d]
        keys, values = keys.permute(0, 1, 3, 4, 2), values.transpose(2, 3)
        seen = _seen(places, chunked.shape[1], layer.window)  # [s, m, t, e]
        grouped = queries.unflatten(2, (self.shape.heads_kv, -1))  # [s, t, k, q / k, d]
        grouped = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)[:, None]  # [s, 1, k, q / k t, d]
        scores = (grouped @ keys.to(queries.dtype)).float() * self.shape.attention_scale
        scores = scores.unflatten(3, (-1, length))  # [s, m, k, q / k, t, e]
        scores = scores.masked_fill(~seen[:, :, None, None], -torch.inf)
        weights = (scores - scores.amax((1, 5), keepdim=True)).exp()
        total = _sum(weights.sum(5).unbind(1))  # [s, k, q / k, t]
        parts = weights.flatten(3, 4).to(queries.dtype) @ values.to(queries.dtype)
        mixed = _sum(parts.float().unbind(1)).unflatten(2, (-1, length)) / total[..., None]
        return mixed.permute(0, 3, 1, 2, 4).flatten(2, 3).to(queries.dtype)  # [s, t, q, d]


def _seen(places: Tensor, chunks: int, window: int) -> Tensor:
    """Which keys the queries at these positions [s, t] see: [s, m, t, e]."""
    keys = torch.arange(chunks * KEY_CHUNK, device=places.device).unflatten(0, (chunks, 1, -1))
    queries = places[:, None, :, None]
    seen = keys <= queries
    return seen & (keys > queries - window) if window else seen


def _sum(parts: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The sum of parts in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (wide * scale * weight).to(x.dtype)


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair of numbers: one of the first half of a head, one of the second."""
    one, two = heads.float().chunk(2, dim=-1)
    turned = torch.cat((one * cosines - two * sines, two * cosines + one * sines), dim=-1)
    return turned.to(heads.dtype)
