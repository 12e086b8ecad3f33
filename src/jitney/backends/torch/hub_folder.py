"""Reads the architecture of a model in a folder as the hub publishes it, from its config.json.

Called before a model is loaded, on any thread. Loads no library. A file may say anything: values
that change what is computed, and are not known here, are a refusal and never ignored.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jitney.backends.torch.architecture import (
    FAMILIES,
    SIZES_MAX,
    Activation,
    Architecture,
    RotaryEmbedding,
    Scaling,
)
from jitney.errors import ModelError
from jitney.models.folder import read_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
TOKENIZER = "tokenizer.json"
INDEX_BYTES_MAX = 16 << 20
PARTS_MAX = 1000

Config = Mapping[str, Any]  # Any: whatever a file says

_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "silu": Activation.SILU,
        "gelu_pytorch_tanh": Activation.GELU,
    }
)
_UNKNOWN = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "mlp_bias",
    "quantization_config",
    "use_bidirectional_attention",
)
"""What changes a computation and is not known here, where it is given and not false."""
_ROTARY_KEYS = frozenset(
    {
        *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"),
        *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"),
        "partial_rotary_factor",
    }
)


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights. Raises ModelError where there are none, or not all."""
    if (folder / INDEX).is_file():
        listed = read_json(folder / INDEX, INDEX_BYTES_MAX).get("weight_map")
        names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
        if not 1 <= len(names) <= PARTS_MAX or any(Path(name).name != name for name in names):
            raise ModelError(f"{folder / INDEX} does not list the files of the weights.")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder} lacks {missing[0]}, which its index lists; fetch it again.")
        return [folder / name for name in names]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(
            f"{folder} has its weights as pickles, which can run code and are never read; take "
            "the model with safetensors files, or convert it."
        )
    raise ModelError(f"{folder} has no {WEIGHTS}; name the folder of a model with safetensors.")


def read_architecture(folder: Path) -> Architecture:
    """The architecture of the model in a folder. Raises ModelError, or ValueError with a clause."""
    return _ConfigReader(read_json(folder / CONFIG)).architecture()


class _ConfigReader:
    """Reads one config.json. Raises ValueError with a clause."""

    def __init__(self, config: Config) -> None:
        family = config.get("model_type")
        inner = config.get("text_config")
        if family == "gemma3" and isinstance(inner, dict):
            # The text part of a model that also reads images leaves out what is usual.
            config = {**_GEMMA_USUAL, **inner}
        self._config = config
        self.family = str(family).removesuffix("_text")
        if self.family not in FAMILIES:
            known = ", ".join(f"{name} ({words})" for name, words in FAMILIES.items())
            raise ValueError(f"its architecture is {str(family)[:80]!r}, and known are {known}")

    def architecture(self) -> Architecture:
        """All numbers, those of the family included."""
        for name in _UNKNOWN:
            if self._config.get(name):
                raise ValueError(f"it has {name}, which is not known here")
        heads, width = self._whole("num_attention_heads"), self._whole("hidden_size")
        head = self._whole("head_dim", width // max(heads, 1))
        written = self._config.get("hidden_activation") or self._config.get("hidden_act")
        activation = _ACTIVATIONS.get(str(written))
        if activation is None:
            raise ValueError(f"its activation is {str(written)[:80]!r}")
        layers = self._whole("num_hidden_layers")
        if not 1 <= layers <= SIZES_MAX["layers"]:
            raise ValueError(f"its number of layers is {layers}")
        is_usually_tied = self.family in ("gemma3", "smollm3")
        common: dict[str, Any] = {
            "family": self.family,
            "layers": layers,
            "width": width,
            "heads": heads,
            "heads_kv": self._whole("num_key_value_heads", heads),
            "head": head,
            "inner": self._whole("intermediate_size"),
            "vocabulary": self._whole("vocab_size"),
            "length_max": self._whole("max_position_embeddings"),
            "epsilon": self._number("rms_norm_eps"),
            "attention_scale": max(head, 1) ** -0.5,
            "activation": activation,
            "rotary": self._rotary("full_attention"),
            "windows": self._windows(layers),
            "is_tied": self._config.get("tie_word_embeddings", is_usually_tied) is True,
        }
        return Architecture(**{**common, **_OWN[self.family](self)})

    def gemma(self) -> dict[str, Any]:
        """What Gemma 3 has of its own."""
        return {
            "attention_scale": self._number("query_pre_attn_scalar") ** -0.5,
            "window_rotary": self._rotary("sliding_attention"),
            "has_head_norms": True,
            "has_after_norms": True,
            "embedding_scale": float(self._whole("hidden_size")) ** 0.5,
        }

    def smollm(self) -> dict[str, Any]:
        """What SmolLM3 has of its own: layers without a rotary embedding."""
        layers = self._whole("num_hidden_layers")
        listed = self._config.get("no_rope_layers")
        if not isinstance(listed, list):
            interval = max(self._whole("no_rope_layer_interval", 4), 1)
            listed = [int((layer + 1) % interval != 0) for layer in range(layers)]
        return {"bare_layers": frozenset(at for at, each in enumerate(listed) if not each)}

    def _windows(self, layers: int) -> tuple[int, ...]:
        """The window of each layer; 0 for one that sees everything."""
        window = self._config.get("sliding_window")
        if window is None or self._config.get("use_sliding_window") is False:
            return ()
        size = self._whole("sliding_window")
        kinds = self._config.get("layer_types")
        if isinstance(kinds, list):
            if len(kinds) != layers or not set(map(str, kinds)) <= _LAYER_KINDS:
                raise ValueError("its layer_types are not known")
            return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
        if self.family == "gemma3":
            period = self._config.get("sliding_window_pattern") or 6
            every = self._checked("sliding_window_pattern", period)
            return tuple(size if (layer + 1) % max(every, 1) else 0 for layer in range(layers))
        if self.family == "mistral":
            return (size,) * layers
        first = self._whole("max_window_layers", 0)
        return tuple(size if layer >= first else 0 for layer in range(layers))

    def _rotary(self, kind: str) -> RotaryEmbedding:
        """The rotary embedding of a kind of layer, as new and old configurations write it."""
        written = self._config.get("rope_parameters")
        if isinstance(written, dict):
            written = written.get(kind, written)
        elif kind == "sliding_attention":
            return RotaryEmbedding(base=self._number("rope_local_base_freq"))
        else:
            written = {"rope_theta": self._number("rope_theta", 10_000.0)}
            written |= self._config.get("rope_scaling") or {}
        return _rotary_of(written, self._whole("max_position_embeddings"))

    def _whole(self, name: str, default: int | None = None) -> int:
        value = self._config.get(name)
        return self._checked(name, default if value is None else value)

    def _checked(self, name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 2**40:
            raise ValueError(f"{name} is {str(value)[:80]}, and not a usual whole number")
        return value

    def _number(self, name: str, default: float | None = None) -> float:
        value = self._config.get(name, default)
        return _positive(name, value)


def _rotary_of(written: Config, length: int) -> RotaryEmbedding:
    unknown = sorted(name for name, value in written.items() if value and name not in _ROTARY_KEYS)
    kind = written.get("rope_type") or written.get("type") or "default"
    if kind not in tuple(Scaling) or unknown or written.get("partial_rotary_factor", 1.0) != 1.0:
        what = ", ".join(unknown) or str(kind)[:80]
        raise ValueError(f"its rotary embedding has {what}, which is not known here")
    scaling = Scaling(kind)
    values: dict[str, Any] = {"base": _positive("rope_theta", written.get("rope_theta", 10_000.0))}
    if scaling is Scaling.NONE:
        return RotaryEmbedding(**values)
    original = written.get("original_max_position_embeddings") or length
    if not isinstance(original, int):
        raise ValueError("its rotary embedding is stretched from a length that is no number")
    fast, slow = ("high_freq_factor", "low_freq_factor")
    if scaling is Scaling.YARN:
        fast, slow = ("beta_fast", "beta_slow")
    for name, key in (("factor", "factor"), ("fast", fast), ("slow", slow)):
        if written.get(key) is not None:
            values[name] = _positive(key, written[key])
    if written.get("attention_factor") is not None:
        values["gain"] = _positive("attention_factor", written["attention_factor"])
    return RotaryEmbedding(scaling=scaling, original_length=original, **values)


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise ValueError(f"{name} is {str(value)[:80]}, and not a usual number")
    return float(value)


_LAYER_KINDS = frozenset({"full_attention", "sliding_attention"})
_GEMMA_USUAL: Config = MappingProxyType(
    {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
    }
)
_OWN: Mapping[str, Callable[[_ConfigReader], dict[str, Any]]] = MappingProxyType(
    {
        "llama": lambda _: {},
        "mistral": lambda _: {},
        "smollm3": _ConfigReader.smollm,
        "qwen2": lambda _: {"has_biases": True},
        "qwen3": lambda _: {"has_head_norms": True},
        "gemma3": _ConfigReader.gemma,
    }
)
"""What each family has of its own."""
