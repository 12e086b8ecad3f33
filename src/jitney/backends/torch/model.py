"""The whole model: from the tokens of a pass to the logits of the tokens that follow them.

A plain decoder. `Decoder.hidden` is the model; the five operations that take most of the time stand
behind `Operations`, so that a GPU has its own and each of them can be tested alone. Nothing here
knows of requests: a pass is `PassRows`, and memory is blocks of cells. One thread calls it.

Shapes are written in one letter each:

    r  rows of the pass: one for each token that it computes
    l  rows whose logits are wanted
    w  width of the residual stream
    q  heads of queries
    k  heads of keys and of values; q / k heads of queries read the same one
    d  numbers of a head
    i  inner width of the feed-forward part
    v  tokens of the vocabulary
    p  parts of a product, which the operation after it adds up
    c  cells of a block: one for each token in it

Tests: tests/e2e/test_torch.py.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jitney.backends.torch.pass_rows import PassRows
from jitney.backends.torch.scaled_weight import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """All that one layer has: its weights, its memory, and what makes it differ from others.

    Weights of norms are float32. What a family does not have is None.
    """

    attention_norm: Tensor  # [w]
    qkv: Weight  # [(q + 2 k) d, w]: queries, then keys, then values
    qkv_bias: Tensor | None  # [(q + 2 k) d]
    query_norm: Tensor | None  # [d]
    key_norm: Tensor | None  # [d]
    output: Weight  # [w, q d]
    after_attention_norm: Tensor | None  # [w]
    feed_norm: Tensor  # [w]
    gate_up: Weight  # [2 i, w]: the gate, then what it lets through
    down: Weight  # [w, i]
    after_feed_norm: Tensor | None  # [w]

    keys: Tensor  # [blocks, c, k, d]
    values: Tensor  # [blocks, c, k, d]
    cosines: Tensor | None  # [positions, d / 2], float32; None where nothing is rotated
    sines: Tensor | None  # [positions, d / 2], float32
    window: int
    """A token sees itself and the `window` - 1 tokens before it; 0 means all of them."""


class Operations(Protocol):
    """The parts of a layer that a device has its own code for. The reference is `plain_ops`."""

    def norm(
        self, parts: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float
    ) -> Tensor:
        """Add the parts [p, r, w] to the residual stream [r, w] in place; its RMS norm [r, w]."""

    def product(self, x: Tensor, weight: Weight) -> Tensor:
        """x [r, m] times weight [n, m]: parts [p, r, n], to be added in their order."""

    def rotate_and_store(self, parts: Tensor, layer: Layer, rows: PassRows) -> Tensor:
        """Queries [r, q, d] of the parts [p, r, (q + 2 k) d]; keys and values go to their cells.

        Biases are added; queries and keys are normed and rotated, each where the layer has it.
        """

    def attend(self, queries: Tensor, layer: Layer, rows: PassRows) -> Tensor:
        """What each row sees of its own sequence up to itself, mixed: [r, q d]."""

    def activate(self, parts: Tensor) -> Tensor:
        """The activation of the gate times the other half: [p, r, 2 i] to [r, i]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The weights, and the way through them."""

    embedding: Tensor  # [v, w]
    embedding_scale: float
    layers: tuple[Layer, ...]
    norm: Tensor  # [w]
    head: Tensor  # [v, w]; often the embedding itself
    epsilon: float

    def hidden(self, rows: PassRows, ops: Operations, *, wanted_only: bool = False) -> Tensor:
        """The last hidden state of every row [r, w], or of those whose logits are wanted [l, w].

        Keys and values are stored on the way.
        """
        residual = self.embedding[rows.tokens]  # [r, w]
        if self.embedding_scale != 1.0:
            residual = residual * self.embedding_scale
        parts = None
        for layer in self.layers:
            x = ops.norm(parts, residual, layer.attention_norm, self.epsilon)  # [r, w]
            queries = ops.rotate_and_store(ops.product(x, layer.qkv), layer, rows)  # [r, q, d]
            mixed = ops.attend(queries, layer, rows)  # [r, q d]
            if wanted_only and layer is self.layers[-1]:
                # From here on, no row needs another one.
                mixed, residual = mixed[rows.wanted], residual[rows.wanted]
            parts = ops.product(mixed, layer.output)  # [p, r, w]
            parts = self._normed(parts, layer.after_attention_norm, ops)
            x = ops.norm(parts, residual, layer.feed_norm, self.epsilon)  # [r, w]
            inner = ops.activate(ops.product(x, layer.gate_up))  # [r, i]
            parts = ops.product(inner, layer.down)  # [p, r, w]
            parts = self._normed(parts, layer.after_feed_norm, ops)
        return ops.norm(parts, residual, self.norm, self.epsilon)  # [r, w]

    def logits(self, hidden: Tensor, ops: Operations) -> Tensor:
        """The logits of hidden states [l, w]: [l, v] in float32."""
        return ops.product(hidden, self.head).sum(0, dtype=torch.float32)

    def _normed(self, parts: Tensor, weight: Tensor | None, ops: Operations) -> Tensor:
        """The parts, or their norm as the only part, for families that norm what a layer adds."""
        if weight is None:
            return parts
        nothing = torch.zeros(parts.shape[1:], dtype=self.embedding.dtype, device=parts.device)
        return ops.norm(parts, nothing, weight, self.epsilon)[None]
