"""The numbers of a model: `Architecture`, the same for every family and every kind of file.

`hub_folder` and `gguf_architecture` read it from what publishers write; every number is checked
here before anything is made of it. Loads no library, so that `jitney backends` can ask. Pure.

Tests: tests/unit/backends/torch/test_hub_folder.py and test_gguf_architecture.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from jitney.core import limits
from jitney.models.gguf_vocabulary import TOKENS_MAX

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "llama": "Llama 2 to 3.3, SmolLM2",
        "mistral": "Mistral",
        "smollm3": "SmolLM3",
        "qwen2": "Qwen 2 and 2.5",
        "qwen3": "Qwen 3 without experts",
        "gemma3": "Gemma 3, its text part",
    }
)
"""The families that are known, and what goes by these names."""

SIZES_MAX: Mapping[str, int] = MappingProxyType(
    {
        "layers": 512,
        "width": 65_536,
        "heads": 1024,
        "heads_kv": 1024,
        "head": 1024,
        "inner": 1_048_576,
        "vocabulary": TOKENS_MAX,
        "length_max": limits.TOKENS_MAX,
    }
)
"""Larger numbers are mistakes: the largest published models have a quarter of these."""


class Activation(StrEnum):
    """The function in the feed-forward part."""

    SILU = "silu"
    GELU = "gelu"
    """The tanh form of it."""


class Scaling(StrEnum):
    """How a rotary embedding is stretched to longer sequences."""

    NONE = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryEmbedding:
    """A rotary embedding: how fast each pair of a head turns."""

    base: float = 10_000.0
    scaling: Scaling = Scaling.NONE
    factor: float = 1.0
    """How much longer sequences are than the original ones."""
    original_length: int = 0
    fast: float = 32.0
    """Pairs that turn more often than this over the original length are not stretched."""
    slow: float = 1.0
    """Pairs that turn less often than this are stretched by the whole factor."""
    gain: float | None = None
    """The factor of cosines and sines; None means what Yarn says, 1 for the others."""

    def __post_init__(self) -> None:
        for name in ("base", "factor", "fast", "slow", "gain"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < 1e12:
                raise ValueError(f"the {name} of its rotary embedding is {value}")
        if self.scaling in (Scaling.LLAMA3, Scaling.YARN) and not (
            0 < self.original_length <= limits.TOKENS_MAX
        ):
            raise ValueError(
                f"its rotary embedding is stretched from {self.original_length} tokens"
            )
        if self.slow >= self.fast or self.base <= 1.0:
            raise ValueError("its rotary embedding is stretched between numbers in the wrong order")

    def frequencies(self, head: int) -> list[float]:
        """Radians per position for each pair of a head."""
        plain = [self.base ** (-2.0 * pair / head) for pair in range(head // 2)]
        if self.scaling is Scaling.LLAMA3:
            return [self._between(each, self._kept_by_turns(each)) for each in plain]
        if self.scaling is Scaling.YARN:
            kept = self._kept_by_pairs(head)
            return [self._between(each, share) for each, share in zip(plain, kept, strict=True)]
        return [each / self.factor for each in plain]

    @property
    def gain_or_default(self) -> float:
        """The factor of cosines and sines."""
        if self.gain is None and self.scaling is Scaling.YARN:
            return 1.0 + 0.1 * math.log(max(self.factor, 1.0))
        return 1.0 if self.gain is None else self.gain

    def _between(self, frequency: float, kept: float) -> float:
        return frequency * kept + frequency / self.factor * (1.0 - kept)

    def _kept_by_turns(self, frequency: float) -> float:
        """The share that Llama 3 does not stretch, by the turns over the original length."""
        turns = self.original_length * frequency / (2.0 * math.pi)
        return min(max((turns - self.slow) / (self.fast - self.slow), 0.0), 1.0)

    def _kept_by_pairs(self, head: int) -> list[float]:
        """The share of each pair that Yarn does not stretch: a line between two whole pairs."""

        def place(turns: float) -> float:
            ratio = self.original_length / (turns * 2.0 * math.pi)
            return head * math.log(ratio) / (2.0 * math.log(self.base))

        low = max(0.0, math.floor(place(self.fast)))
        high = min(head - 1.0, math.ceil(place(self.slow)))
        width = max(0.001, high - low)
        return [1.0 - min(max((pair - low) / width, 0.0), 1.0) for pair in range(head // 2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder of a known family. Raises ValueError, with a clause, for impossible numbers."""

    family: str
    layers: int
    width: int
    heads: int
    heads_kv: int
    head: int
    """Numbers of a head."""
    inner: int
    """The inner width of the feed-forward part."""
    vocabulary: int
    length_max: int
    """The longest sequence that the model was made for."""
    epsilon: float
    attention_scale: float
    activation: Activation = Activation.SILU
    rotary: RotaryEmbedding = RotaryEmbedding()
    windows: tuple[int, ...] = ()
    """For each layer how many tokens a token sees; 0 means all. Empty means all in every layer."""
    window_rotary: RotaryEmbedding | None = None
    """The rotary embedding of layers with a window, where it is another one."""
    bare_layers: frozenset[int] = frozenset()
    """Layers without a rotary embedding."""
    has_biases: bool = False
    """Whether queries, keys and values have biases."""
    has_head_norms: bool = False
    """Whether queries and keys are normed head by head."""
    has_after_norms: bool = False
    """Whether what a layer adds is normed before it is added."""
    is_tied: bool = False
    """Whether the head is the embedding."""
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, most in SIZES_MAX.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ValueError(f"its number of {_WORDS[name]} is {value}, not 1 to {most}")
        if self.heads % self.heads_kv:
            raise ValueError(f"{self.heads} heads cannot share {self.heads_kv} of keys and values")
        if self.head % 2:
            raise ValueError(f"its heads have {self.head} numbers, which make no pairs")
        if not 0.0 < self.epsilon < 1.0 or not 0.0 < self.attention_scale < 1e3:
            raise ValueError(f"its epsilon is {self.epsilon}, its scale {self.attention_scale}")
        if len(self.windows) not in (0, self.layers) or not all(
            0 <= window <= limits.TOKENS_MAX for window in self.windows
        ):
            raise ValueError(f"it has windows for {len(self.windows)} of {self.layers} layers")

    @property
    def kv_values_per_token(self) -> int:
        """How many numbers the keys and values of one token have, over all layers."""
        return 2 * self.layers * self.heads_kv * self.head

    @property
    def weight_count(self) -> int:
        """How many weights its matrices have."""
        attention = (2 * self.heads + 2 * self.heads_kv) * self.head * self.width
        layer = attention + 3 * self.inner * self.width
        return self.layers * layer + (2 - self.is_tied) * self.vocabulary * self.width

    def weight_bytes(self, number_bytes: int, matrix_bytes: int) -> int:
        """The least bytes of its weights, if those of layers have another type of number."""
        outer = (2 - self.is_tied) * self.vocabulary * self.width
        return outer * number_bytes + (self.weight_count - outer) * matrix_bytes

    def window(self, layer: int) -> int:
        """How many tokens a token of this layer sees; 0 means all."""
        return self.windows[layer] if self.windows else 0

    def rotary_of(self, layer: int) -> RotaryEmbedding | None:
        """The rotary embedding of a layer; None where it has none."""
        if layer in self.bare_layers:
            return None
        return self.window_rotary if self.window(layer) and self.window_rotary else self.rotary


_WORDS = {
    "layers": "layers",
    "width": "numbers in a hidden state",
    "heads": "heads",
    "heads_kv": "heads of keys and values",
    "head": "numbers in a head",
    "inner": "numbers between the layers' matrices",
    "vocabulary": "tokens",
    "length_max": "positions",
}
