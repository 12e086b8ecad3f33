"""Reads the architecture of a model in a GGUF from its header, by llama.cpp's names and rules.

Called before a model is loaded, on any thread. Loads no library.

Tests: tests/unit/backends/torch/test_gguf_architecture.py.
"""

from typing import Any

from jitney.backends.torch.architecture import (
    FAMILIES,
    SIZES_MAX,
    Activation,
    Architecture,
    RotaryEmbedding,
    Scaling,
)
from jitney.models.gguf import GgufHeader

PERMUTED = frozenset({"llama", "smollm3"})
"""Families whose queries and keys are stored so that neighbours form the pairs of a rotation."""
GEMMA_PERIOD, SMOLLM3_PERIOD = 6, 4
GEMMA_LOCAL_BASE = 10_000.0
GEMMA_27B_LAYERS = 62


def architecture_of(header: GgufHeader, tokens: int) -> Architecture:
    """The architecture of a model with so many tokens. Raises ValueError, with a clause."""
    family = header.architecture
    if family not in FAMILIES or family == "mistral":
        known = ", ".join(name for name in FAMILIES if name != "mistral")
        raise ValueError(f"its architecture is {family[:80]!r}, and known are {known}")
    if header.metadata.get(f"{family}.expert_count"):
        raise ValueError("it is a mixture of experts")
    reader = _HeaderReader(header)
    heads = reader.whole("attention.head_count")
    head = reader.whole("attention.key_length", header.embedding_length // max(heads, 1))
    if reader.whole("rope.dimension_count", head) != head:
        raise ValueError(f"only a part of the {head} numbers of a head is rotated")
    if reader.whole("attention.value_length", head) != head:
        raise ValueError("its keys and values have different lengths")
    kinds = header.tensor_kinds
    common: dict[str, Any] = {
        "family": family,
        "layers": header.layer_count,
        "width": header.embedding_length,
        "heads": heads,
        "heads_kv": reader.whole("attention.head_count_kv", heads),
        "head": head,
        "inner": reader.whole("feed_forward_length"),
        "vocabulary": tokens,
        "length_max": header.context_length or 0,
        "epsilon": reader.number("attention.layer_norm_rms_epsilon"),
        "attention_scale": max(head, 1) ** -0.5,
        "rotary": reader.rotary(),
        "has_biases": "attn_q.bias" in kinds,
        "has_head_norms": "attn_q_norm.weight" in kinds,
        "is_tied": "output.weight" not in kinds,
    }
    own = {"gemma3": reader.gemma, "smollm3": reader.smollm}.get(family, dict)
    return Architecture(**common | own())


class _HeaderReader:
    """Reads the keys of one family. Raises ValueError with a clause."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header

    def gemma(self) -> dict[str, Any]:
        """What Gemma 3 has of its own."""
        layers, width = self._header.layer_count, self._header.embedding_length
        window = self.whole("attention.sliding_window")
        own: dict[str, Any] = {
            "activation": Activation.GELU,
            "windows": tuple(
                window if (layer + 1) % GEMMA_PERIOD else 0
                for layer in range(min(layers, SIZES_MAX["layers"]))
            ),
            "window_rotary": RotaryEmbedding(
                base=self.number("rope.freq_base_swa", GEMMA_LOCAL_BASE)
            ),
            "has_after_norms": True,
            "embedding_scale": float(width) ** 0.5,
        }
        if layers == GEMMA_27B_LAYERS:
            # No key says it; llama.cpp knows it by the number of layers, too.
            own["attention_scale"] = (width / max(self._header.head_count, 1)) ** -0.5
        return own

    def smollm(self) -> dict[str, Any]:
        """What SmolLM3 has of its own: layers without a rotary embedding."""
        layers = self._header.layer_count
        return {"bare_layers": frozenset(range(SMOLLM3_PERIOD - 1, layers, SMOLLM3_PERIOD))}

    def rotary(self) -> RotaryEmbedding:
        """The rotary embedding, without the factors that a tensor may have."""
        base = self.number("rope.freq_base", 10_000.0)
        kind = self._value("rope.scaling.type", "linear")
        factor = self._value("rope.scaling.factor", 0.0) or self._value("rope.scale_linear", 0.0)
        if kind == "none" or not factor:
            return RotaryEmbedding(base=base)
        if kind not in (Scaling.LINEAR, Scaling.YARN) or not isinstance(factor, int | float):
            raise ValueError(f"its rotary embedding is stretched by the rule {str(kind)[:80]!r}")
        length = self.whole("rope.scaling.original_context_length", self._header.context_length)
        gain = self._value("rope.scaling.attn_factor", 0.0)
        if gain and kind == Scaling.YARN:
            raise ValueError("its rotary embedding has a gain of its own")
        scaling = Scaling(str(kind))
        return RotaryEmbedding(
            base=base, scaling=scaling, factor=float(factor), original_length=length
        )

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._value(name, default)
        if isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} is {str(value)[:80]}, and not one whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{name} is {str(value)[:80]}, and not a number above 0")
        return float(value)

    def _value(self, name: str, default: object) -> object:
        return self._header.metadata.get(f"{self._header.architecture}.{name}", default)
