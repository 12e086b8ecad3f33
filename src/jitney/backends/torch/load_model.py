"""Loads a model onto a device: its weights out of a folder or a GGUF, and its empty memory.

Called while a backend is built. One tensor at a time is read and sent to the device.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from jitney.backends.torch.architecture import Architecture, RotaryEmbedding
from jitney.backends.torch.model import Decoder, Layer
from jitney.backends.torch.scaled_weight import NUMBERS, Weight, scaled


class StoredTensors(Protocol):
    """The weights in a file or a folder, by our keys."""

    def read(self, key: str) -> Tensor:
        """A tensor, as it is stored."""

    def factors(self) -> Tensor | None:
        """What the frequencies of the rotary embedding are divided by, if the files say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a model goes, in which types of numbers, and how much memory it gets."""

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    blocks: int
    block_tokens: int
    positions: int
    """No sequence is longer."""
    quantization: str = ""
    """Of the weights of layers, a key of `NUMBERS`; empty where they are in `dtype`."""


def tensors_of(path: Path, shape: Architecture) -> StoredTensors:
    """The weights of a model. Each kind of file has a library of its own. Raises ModelError."""
    kind = ("hub_tensors", "HubTensors") if path.is_dir() else ("gguf_tensors", "GgufTensors")
    module = importlib.import_module(f"jitney.backends.torch.{kind[0]}")
    made: Callable[[Path, Architecture], StoredTensors] = getattr(module, kind[1])
    return made(path, shape)


def load_model(tensors: StoredTensors, shape: Architecture, place: Placement) -> Decoder:
    """The model, with all weights read. Raises ModelError."""

    def weight(key: str) -> Tensor:
        return tensors.read(key).to(place.device, place.dtype)

    tables = _RotaryTables(shape, place, tensors.factors())
    embedding = weight("embedding")
    return Decoder(
        embedding=embedding,
        # Rounded as the weights are, and a number of the host: nothing is copied in a graph.
        embedding_scale=torch.tensor(shape.embedding_scale, dtype=place.dtype).item(),
        layers=tuple(_layer(at, tensors, shape, place, tables) for at in range(shape.layers)),
        norm=tensors.read("norm").to(place.device, torch.float32),
        head=embedding if shape.is_tied else weight("head"),
        epsilon=shape.epsilon,
    )


def _layer(
    at: int, tensors: StoredTensors, shape: Architecture, place: Placement, tables: "_RotaryTables"
) -> Layer:
    def joined(*kinds: str) -> Tensor:
        """The rows of several tensors, one after the other."""
        read = [tensors.read(f"{at}.{kind}") for kind in kinds]
        return torch.cat(read).to(place.device, place.dtype)

    def matrix(*kinds: str) -> Weight:
        read = joined(*kinds)
        return scaled(read, NUMBERS[place.quantization]) if place.quantization else read

    def norm(kind: str, is_there: bool = True) -> Tensor | None:
        return tensors.read(f"{at}.{kind}").to(place.device, torch.float32) if is_there else None

    def cells() -> Tensor:
        size = (place.blocks, place.block_tokens, shape.heads_kv, shape.head)
        return torch.zeros(size, dtype=place.kv_dtype, device=place.device)

    attention_norm, feed_norm = norm("attention_norm"), norm("feed_norm")
    assert attention_norm is not None
    assert feed_norm is not None
    cosines, sines = tables.of(shape.rotary_of(at))
    biases = ("query_bias", "key_bias", "value_bias")
    return Layer(
        attention_norm=attention_norm,
        qkv=matrix("query", "key", "value"),
        qkv_bias=joined(*biases) if shape.has_biases else None,
        query_norm=norm("query_norm", shape.has_head_norms),
        key_norm=norm("key_norm", shape.has_head_norms),
        output=matrix("output"),
        after_attention_norm=norm("after_attention_norm", shape.has_after_norms),
        feed_norm=feed_norm,
        gate_up=matrix("gate", "up"),
        down=matrix("down"),
        after_feed_norm=norm("after_feed_norm", shape.has_after_norms),
        keys=cells(),
        values=cells(),
        cosines=cosines,
        sines=sines,
        window=shape.window(at),
    )


class _RotaryTables:
    """Cosines and sines for each position, once for each rotary embedding of a model."""

    def __init__(self, shape: Architecture, place: Placement, factors: Tensor | None) -> None:
        self._head = shape.head
        self._place = place
        self._factors = factors
        self._made: dict[RotaryEmbedding, tuple[Tensor, Tensor]] = {}

    def of(self, rotary: RotaryEmbedding | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """The tables [positions, d / 2] of a rotary embedding."""
        if rotary is None:
            return None, None
        if rotary not in self._made:
            self._made[rotary] = self._make(rotary)
        return self._made[rotary]

    def _make(self, rotary: RotaryEmbedding) -> tuple[Tensor, Tensor]:
        # In float32 the angles of late positions would be wrong.
        frequencies = torch.tensor(rotary.frequencies(self._head), dtype=torch.float64)
        if self._factors is not None:
            frequencies = frequencies / self._factors.double()
        positions = torch.arange(self._place.positions, dtype=torch.float64)
        angles = torch.outer(positions, frequencies)
        cosines, sines = (
            (each * rotary.gain_or_default).to(self._place.device, torch.float32)
            for each in (angles.cos(), angles.sin())
        )
        return cosines, sines
