"""The operations of the model on a GPU: `TritonOps`.

Tests: tests/unit/backends/torch/kernels/test_triton_ops.py.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.device_rows import DeviceRows
from jitney.backends.torch.kernels.activation import activate
from jitney.backends.torch.kernels.decode_attention import Cache, Sequences, attend_decodes
from jitney.backends.torch.kernels.heads import Turn, rotate_and_store
from jitney.backends.torch.kernels.norm import add_and_norm
from jitney.backends.torch.kernels.product import Tile, multiply
from jitney.backends.torch.kernels.rounding import multiply_rounded
from jitney.backends.torch.kernels.span_attention import Tiles, attend_spans
from jitney.backends.torch.kernels.tiles import same_tile, tile_of
from jitney.backends.torch.kernels.widening import multiply_widened
from jitney.backends.torch.model import Layer
from jitney.backends.torch.pass_rows import PassRows
from jitney.backends.torch.scaled_weight import FP8, ScaledWeight, Weight

DECODES_MANY = 64
"""With so many sequences the GPU is full of programs of attention."""


@dataclass(frozen=True, slots=True)
class TritonOps:
    """Implements `jitney.backends.torch.model.Operations`; shapes are explained there."""

    shape: Architecture
    dtype: torch.dtype
    """Of weights and of what goes through the model; parts of a product may be wider."""
    is_invariant: bool
    """Whether a row is computed alike whatever else is in the pass, which takes longer."""

    def norm(
        self, parts: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float
    ) -> Tensor:
        """Add the parts to the residual stream in place; its RMS norm."""
        return add_and_norm(parts, residual, weight, epsilon)

    def product(self, x: Tensor, weight: Weight) -> Tensor:
        """x [r, m] times weight [n, m], in parts [p, r, n]."""
        tile = self._tile(x, weight)
        if tile is not None:
            dtype = torch.float32 if tile.parts > 1 else self.dtype
            return multiply(x, weight, tile, dtype)
        if isinstance(weight, ScaledWeight):
            is_fp8 = weight.numbers.dtype == FP8
            return (multiply_rounded if is_fp8 else multiply_widened)(x, weight)[None]
        return functional.linear(x, weight)[None]

    def write_logits(self, hidden: Tensor, head: Tensor, out: Tensor) -> None:
        """Write hidden states [l, w] times the head [v, w] to `out` [l, v]."""
        tile = self._tile(hidden, head)
        if tile is None:
            torch.mm(hidden, head.T, out=out)
        else:
            multiply(hidden, head, replace(tile, parts=1), self.dtype, out[None])

    def _tile(self, x: Tensor, weight: Weight) -> Tile | None:
        columns, depth = weight.shape
        if self.is_invariant:
            return same_tile(columns)
        return tile_of(len(x), columns, depth, is_scaled=isinstance(weight, ScaledWeight))

    def rotate_and_store(self, parts: Tensor, layer: Layer, rows: PassRows) -> Tensor:
        """Queries [r, q, d]; keys and values go to their cells."""
        turn = Turn(
            layer.cosines, layer.sines, layer.qkv_bias, layer.query_norm, layer.key_norm,
            self.shape.epsilon,
        )  # fmt: skip
        return rotate_and_store(
            parts, rows.positions, rows.cells, layer.keys, layer.values, turn, self.dtype
        )

    def attend(self, queries: Tensor, layer: Layer, rows: PassRows) -> Tensor:
        """What each row sees of its own sequence up to itself, mixed: [r, q d]."""
        assert isinstance(rows, DeviceRows), "The tables of all slots are needed"
        out = torch.empty_like(queries)
        cache, scale = Cache(layer.keys, layer.values, layer.window), self.shape.attention_scale
        if rows.decodes:
            starts = rows.positions[: rows.decodes]
            sequences = Sequences(rows.blocks, rows.slots[: rows.decodes], starts, rows.length_max)
            is_many = self.is_invariant or rows.decodes >= DECODES_MANY
            attend_decodes(queries, cache, sequences, out, scale, is_many=is_many)
        if rows.tiles is not None:
            of_spans = range(rows.decodes, len(queries))
            tiles = Tiles(rows.tiles, rows.positions, of_spans, rows.length_max)
            attend_spans(queries, cache, rows.blocks, tiles, out, scale)
        return out.flatten(1)

    def activate(self, parts: Tensor) -> Tensor:
        """The activation of the gate times the other half: [r, i]."""
        return activate(parts, self.shape.activation, self.dtype)
