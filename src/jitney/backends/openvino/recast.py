"""Presents a model as one of the few families that OpenVINO's reader knows: which rows go where.

Called by `requantize`, in the child of `convert` only. Some families differ from a known one by
the layout of their weights alone. The reader gets them under the name of the known one, with
matrices split and rows in its order. Rows are moved whole, so packed weights do not change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from jitney.backends.openvino.rotary import row_order
from jitney.models.gguf import GgufHeader

READ_AS: Mapping[str, str] = {"smollm3": "llama", "phi3": "qwen2"}
"""The known family for each family that the reader does not know. For Qwen 2 the reader accepts a
model without biases, and pairs the two halves of a head, as Phi 3 does."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor for the reader: all rows of one of the model's tensors, or some."""

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
        """Its weights as they are stored, row by row."""
        whole = np.asarray(self.tensor.data)
        return whole if self.rows is None else whole[self.rows]


def pieces(header: GgufHeader, tensors: Iterable[gguf.ReaderTensor]) -> Iterator[Piece]:
    """The tensors of a model for the reader."""
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
    """The rows of the queries, keys and values in the matrix that has all three."""
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
