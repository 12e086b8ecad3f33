"""A Llama in numpy: its weights, and the forward pass for rows of tokens.

Knows nothing of slots: a row is a token, with the places of its keys and values and of all earlier
ones. Every row is computed alone, and the shapes of its operations depend on its position only. So
its result is the same to the last bit in every batch (invariant 4). But weights are read for each
row, and not once for all.

Shapes: r rows, w width, h heads of keys and values, g heads of queries for each of those, d
numbers in a head, n tokens in the context of a row.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from jitney.models.gguf import read_header
from jitney.models.parts import parts_of

Floats = npt.NDArray[np.float32]

EPSILON = 1e-5
ROTARY_BASE = 10_000.0
"""The usual values, where the header does not say."""


@dataclass(frozen=True, slots=True)
class TokenShape:
    """The shape of one token's keys, and of its values."""

    layers: int
    heads: int
    head: int
    """Numbers in a head."""


class Llama:
    """The model of a GGUF."""

    def __init__(self, path: Path) -> None:
        """Read the weights. Raises ModelError for a bad file."""
        header = read_header(path)
        self._weights = _read_weights(path)
        self._embedding = self._weights["token_embd.weight"]
        self._output = self._weights.get("output.weight", self._embedding)
        self.vocabulary_count, width = self._embedding.shape
        self.length_max = header.context_length or 0
        head = width // header.head_count
        heads = len(self._weights["blk.0.attn_k.weight"]) // head
        self.token_shape = TokenShape(header.layer_count, heads, head)

        def number(name: str, usual: float) -> float:
            value = header.metadata.get(f"llama.{name}", usual)
            return value if isinstance(value, float) else usual

        self._epsilon = np.float32(number("attention.layer_norm_rms_epsilon", EPSILON))
        speeds = number("rope.freq_base", ROTARY_BASE) ** (-np.arange(0, head, 2) / head)
        angles = np.outer(np.arange(self.length_max), speeds)
        self._cos, self._sin = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)

    def forward(self, tokens: list[int], contexts: list[list[int]], kv: Floats) -> Floats:
        """The last hidden state of each row [r w]; keys and values are written to `kv`.

        A context is the places of a row in order of positions; the last one is its own.
        """
        positions = [len(context) - 1 for context in contexts]
        places = [context[-1] for context in contexts]
        hidden = self._embedding[tokens]  # [r w]
        for layer, (keys, values) in enumerate(kv):
            normed = self._normed(hidden, f"blk.{layer}.attn_norm")
            query, key, value = (
                self._heads(self._times(f"blk.{layer}.attn_{name}", normed)) for name in "qkv"
            )  # [r h g d], [r h 1 d], [r h 1 d]
            query, key = self._turned(query, positions), self._turned(key, positions)
            # Written before they are read: a row sees the earlier ones of its own span.
            keys[places], values[places] = key[:, :, 0], value[:, :, 0]
            mixed = np.array(
                [
                    _attention(each, keys[context], values[context])
                    for each, context in zip(query, contexts, strict=True)
                ]
            ).reshape(hidden.shape)
            hidden = hidden + self._times(f"blk.{layer}.attn_output", mixed)
            normed = self._normed(hidden, f"blk.{layer}.ffn_norm")
            gate = self._times(f"blk.{layer}.ffn_gate", normed)
            inner = gate / (1 + np.exp(-gate)) * self._times(f"blk.{layer}.ffn_up", normed)
            hidden = hidden + self._times(f"blk.{layer}.ffn_down", inner)
        return hidden

    def logits(self, hidden: Floats) -> Floats:
        """The logits of each row."""
        return _product(self._output, self._normed(hidden, "output_norm"))

    def _times(self, name: str, rows: Floats) -> Floats:
        return _product(self._weights[f"{name}.weight"], rows)

    def _normed(self, rows: Floats, name: str) -> Floats:
        mean = np.square(rows).mean(axis=-1, keepdims=True)
        normed: Floats = rows / np.sqrt(mean + self._epsilon) * self._weights[f"{name}.weight"]
        return normed

    def _heads(self, rows: Floats) -> Floats:
        """[r w] to [r h g d]: heads that use the same keys stand together."""
        return rows.reshape(len(rows), self.token_shape.heads, -1, self.token_shape.head)

    def _turned(self, heads: Floats, positions: list[int]) -> Floats:
        """The rotary embedding: neighbouring numbers are a pair, turned by their position."""
        cos, sin = (table[positions][:, None, None] for table in (self._cos, self._sin))
        even, odd = heads[..., 0::2], heads[..., 1::2]
        pairs = np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1)
        return pairs.reshape(heads.shape)


def _product(matrix: Floats, rows: Floats) -> Floats:
    """The matrix times each row, one by one: the product of all would round by their number."""
    product: Floats = (matrix @ rows[..., None])[..., 0]
    return product


def _attention(query: Floats, keys: Floats, values: Floats) -> Floats:
    """One row [h g d] over its context [n h d]."""
    scores = query @ keys.transpose(1, 2, 0) / np.float32(query.shape[-1] ** 0.5)  # [h g n]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: Floats = weights / weights.sum(axis=-1, keepdims=True) @ values.transpose(1, 0, 2)
    return mixed


def _read_weights(path: Path) -> dict[str, Floats]:
    """All tensors by name, unpacked."""
    tensors = (tensor for part in parts_of(path) for tensor in gguf.GGUFReader(part).tensors)
    return {
        each.name: np.array(gguf.dequantize(each.data, each.tensor_type), np.float32)
        for each in tensors
    }
