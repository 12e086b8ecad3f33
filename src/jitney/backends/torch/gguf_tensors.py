"""`GgufTensors`: the weights of a model in a GGUF, unpacked to float32 by the package `gguf`.

Called while a backend is built, after `read_header` has checked the file: offsets and sizes of the
tensors lie in it.

Tests: tests/e2e/test_torch.py.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.gguf_architecture import PERMUTED
from jitney.backends.torch.tensor_names import GGUF_FACTORS, gguf_names, tensor_shapes
from jitney.errors import ModelError
from jitney.models.parts import parts_of


class GgufTensors:
    """Reads tensors by our keys. Raises ModelError."""

    def __init__(self, path: Path, shape: Architecture) -> None:
        self._path = path
        self._shape = shape
        self._shapes = tensor_shapes(shape)
        self._names = gguf_names(shape)
        self._tensors = {
            tensor.name: tensor
            for part in parts_of(path)
            for tensor in gguf.GGUFReader(part).tensors
        }
        self._check()

    def read(self, key: str) -> Tensor:
        """A tensor in float32, with rows in the order of the hub's models."""
        tensor = self._unpacked(self._names[key])
        kind = key.rpartition(".")[2]
        if self._shape.family in PERMUTED and kind in ("query", "key"):
            # Neighbours form a pair here; in the model the two halves of a head do.
            heads = self._shape.heads if kind == "query" else self._shape.heads_kv
            pairs = tensor.unflatten(0, (heads, self._shape.head // 2, 2))
            return pairs.transpose(1, 2).flatten(0, 2)
        return tensor

    def factors(self) -> Tensor | None:
        """What the frequencies of the rotary embedding are divided by, where a tensor says it."""
        if GGUF_FACTORS not in self._tensors:
            return None
        found = self._unpacked(GGUF_FACTORS)
        if found.shape != (self._shape.head // 2,) or not bool((found > 0).all()):
            raise ModelError(
                f"{self._path} has {GGUF_FACTORS} that are no factors; fetch it again."
            )
        return found

    def _unpacked(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        try:
            floats = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise ModelError(
                f"{self._path} has weights of type {tensor.tensor_type.name}, which cannot be "
                "unpacked here; use the llama.cpp backend."
            ) from None
        return torch.from_numpy(np.array(floats, np.float32))

    def _check(self) -> None:
        known = {*self._names.values(), GGUF_FACTORS}
        strange = sorted(name for name in self._tensors if name not in known)
        if strange:
            raise ModelError(
                f"{self._path} has {strange[0][:200]}, which a model of the architecture "
                f"{self._shape.family} does not have here; use the llama.cpp backend."
            )
        for key, name in self._names.items():
            if name not in self._tensors:
                raise ModelError(f"{self._path} has no {name}; fetch it again.")
            size = tuple(map(int, reversed(self._tensors[name].shape)))
            if size != self._shapes[key]:
                raise ModelError(
                    f"{self._path} has {name} with the shape {size}, and its header says "
                    f"{self._shapes[key]}; fetch it again."
                )
