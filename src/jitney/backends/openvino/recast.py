"""A model as one of the few families that OpenVINO's reader builds: which rows go where.

Called by `requantize`, in the child of `convert` only. Families that differ in the layout of their
weights alone are given to the reader under another name, with their matrices cut and their rows put
in order; rows are moved whole, so that packed weights stay as they are.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from jitney.backends.openvino.rotary import row_order
from jitney.models.gguf import GgufHeader

READ_AS: Mapping[str, str] = {"smollm3": "llama", "phi3": "qwen2"}
"""What the reader is given, for families that it does not know. It takes the biases of Qwen 2 where
there are some, and lets pairs of a head be its two halves, as Phi 3 does."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor for the reader: some rows of one of the model's, or all of it."""

    name: str
    tensor: gguf.ReaderTensor
    rows: Rows | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions, rows first."""
        whole = tuple(map(int, reversed(self.tensor.shape)))
        return whole if self.rows is None else (len(self.rows), *whole[1:])

    @property
    def data(self) -> npt.NDArray[np.generic]:
        """Its weights as they are stored, a row each."""
        whole = np.asarray(self.tensor.data)
        return whole if self.rows is None else whole[self.rows]


def pieces(header: GgufHeader, tensors: Iterable[gguf.ReaderTensor]) -> Iterator[Piece]:
    """What the reader is to be given of a model."""
    for tensor in tensors:
        layer, _, kind = tensor.name.rpartition(".attn_qkv.")
        if layer:
            for name, rows in _attention_rows(header, int(tensor.shape[-1])).items():
                yield Piece(f"{layer}.attn_{name}.{kind}", tensor, rows)
            continue
        layer, _, kind = tensor.name.rpartition(".ffn_up.")
        if layer and header.architecture == "phi3":
            gate, up = np.split(np.arange(int(tensor.shape[-1])), 2)
            yield Piece(f"{layer}.ffn_gate.{kind}", tensor, gate)
            yield Piece(f"{layer}.ffn_up.{kind}", tensor, up)
        else:
            yield Piece(tensor.name, tensor)


def _attention_rows(header: GgufHeader, count: int) -> dict[str, Rows]:
    """Rows of the queries, the keys and the values in the matrix that holds all three."""
    order = row_order(header)
    heads = header.head_count
    stored = header.metadata.get(f"{header.architecture}.attention.head_count_kv", heads)
    heads_kv = stored if isinstance(stored, int) else heads
    starts = np.arange(heads + 2 * heads_kv) * len(order)
    if len(starts) * len(order) != count:
        raise ValueError(f"a matrix of queries, keys and values has {count} rows")
    queries, keys, values = np.split(starts, [heads, heads + heads_kv])
    plain = np.arange(len(order))
    return {
        "q": (queries[:, None] + order).ravel(),
        "k": (keys[:, None] + order).ravel(),
        "v": (values[:, None] + plain).ravel(),
    }
