"""Which models OpenVINO runs, and with which numbers. Light: nothing of the library is loaded.

Asked before a model is converted, on any thread. The library's reader builds plain decoders of a
few architectures and passes over what it does not know: a model with a stretched rotary embedding
would be converted, and answer wrongly. Such files are refused here.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitney.errors import ModelError
from jitney.models.gguf import GgufHeader, read_header

FILES = ("openvino_model.xml", "openvino_model.bin")
"""What a converted or exported model consists of."""

ARCHITECTURES = ("llama", "qwen2", "qwen3")
WEIGHT_TYPES = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
CONFIG_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What the sizes of memory follow from."""

    model_len_max: int
    kv_values_per_token: int
    """Numbers that the keys and values of one token consist of, over all layers."""


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Kinds of numbers by the library's names, and the bytes of one in the memory."""

    inference: str
    kv: str
    kv_bytes: float


def refusal(header: GgufHeader) -> str | None:
    """Why OpenVINO cannot run this GGUF, or None when it can."""
    family = header.architecture
    if family not in ARCHITECTURES:
        return f"its architecture is {family}, and OpenVINO reads {', '.join(ARCHITECTURES)}"
    unknown = sorted(set(header.weight_types) - set(WEIGHT_TYPES))
    if unknown:
        return (
            f"it has weights of type {', '.join(unknown)}, and OpenVINO reads "
            f"{', '.join(WEIGHT_TYPES)}"
        )
    scaling = header.metadata.get(f"{family}.rope.scaling.type", "none")
    if scaling != "none" or header.has_rope_factors:
        return "its rotary embedding is stretched, which OpenVINO's reader passes over"
    if header.metadata.get(f"{family}.expert_count"):
        return "it is a mixture of experts"
    if not header.context_length or not header.kv_bytes_per_token:
        return "its header does not say how long its sequences are, or how large their memory"
    return None


def is_exported(model: Path) -> bool:
    """Whether the path is the folder of a model exported for OpenVINO."""
    return all((model / name).is_file() for name in FILES)


def facts(source: Path) -> Facts:
    """The facts of a GGUF or of an exported folder. Raises ModelError."""
    if source.is_dir():
        return _facts_of_folder(source)
    header = read_header(source)
    assert header.context_length, "refused before"
    return Facts(header.context_length, header.kv_bytes_per_token // 2)


def _facts_of_folder(folder: Path) -> Facts:
    config = read_json(folder / "config.json")
    try:
        heads = int(config["num_attention_heads"])
        heads_kv = int(config.get("num_key_value_heads") or heads)
        head = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        values = int(config["num_hidden_layers"]) * heads_kv * head * 2
        length = int(config["max_position_embeddings"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        values = length = 0
    if values < 1 or length < 1:
        raise ModelError(
            f"{folder / 'config.json'} does not say how large the model is; export it again."
        )
    return Facts(length, values)


def read_json(path: Path) -> dict[str, Any]:  # Any: whatever the file says
    """A small JSON object of an exported folder. Raises ModelError."""
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ModelError(f"{path} is larger than {CONFIG_BYTES_MAX} bytes.")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ModelError(f"{path} is not JSON.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object.")
    return value


def dtypes(dtype: str, kv_cache_dtype: str) -> Dtypes:
    """The library's names for the settings; what `auto` is was measured (decision 0010)."""
    names = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "uint8": "u8"}
    sizes = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "u8": 1.25}
    inference = names.get(dtype, "auto")
    kv = names.get(kv_cache_dtype, "f16")
    # Scales and offsets stand beside numbers of 8 bits.
    return Dtypes(inference, kv, sizes[kv])
