"""Which models OpenVINO runs, and with which types of numbers. Does not load the library.

Called before a model is converted, on any thread. The library's reader builds plain decoders of a
few architectures, and ignores what it does not know. The conversion corrects some of this
(`recast`, `rotary`). Files with anything else would give wrong answers, so they are refused here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.machine.processor import read_processor
from jitney.errors import ConfigError, ModelError
from jitney.models.folder import read_json
from jitney.models.gguf import GgufHeader, read_header
from jitney.tokenizers.splits import SPLITS

FILES = ("openvino_model.xml", "openvino_model.bin")
"""The files of a converted or exported model."""

FACTORS_ANY = "rope_freqs.weight"
FACTORS_SHORT, FACTORS_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Tensors of factors that stretch a rotary embedding: for sequences of any length, for sequences up
to the original length, and for longer ones."""

_PLAIN = frozenset(
    {
        *("token_embd.weight", "output_norm.weight", "output.weight"),
        *("attn_norm.weight", "attn_output.weight"),
        *("ffn_norm.weight", "ffn_up.weight", "ffn_down.weight"),
    }
)
_SEPARATE = _PLAIN | {"attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight"}
TENSORS: Mapping[str, frozenset[str]] = {
    "llama": _SEPARATE | {FACTORS_ANY, FACTORS_SHORT, FACTORS_LONG},
    "qwen2": _SEPARATE | {"attn_q.bias", "attn_k.bias", "attn_v.bias"},
    "qwen3": _SEPARATE | {"attn_q_norm.weight", "attn_k_norm.weight"},
    "smollm3": _SEPARATE,
    "phi3": _PLAIN | {"attn_qkv.weight", FACTORS_SHORT, FACTORS_LONG},
}
"""The tensors that the conversion uses, by architecture. Each was compared with llama.cpp."""
ARCHITECTURES = tuple(TENSORS)
_GEMMA = "it scales its embeddings and has norms after its layers, which the reader does not build"
"""Why a well-known architecture is not among those."""
SCALINGS = ("none", "linear", "yarn", "longrope")
"""Ways to stretch a rotary embedding, by llama.cpp's names."""
WEIGHT_TYPES = frozenset(
    {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
    }
)
"""Types that `requantize` or the library reads. llama.cpp reads the others."""
ACTIVATION_GROUP = 32
SHORT_NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "uint8": "u8"}
LONG_NAMES = {short: name for name, short in SHORT_NAMES.items()}
"""Types of numbers: the name in the settings, and the name in the library."""
KV_KINDS = {"f32": ("f32", "f16", "u8"), "bf16": ("bf16", "f16", "u8")}
"""The types that keys and values can have, for each type of computation."""
BLOCK_TOKENS = 32
"""The CPU plugin's attention kernel takes blocks of this size and no other."""

UNPACKED_PARAMETERS_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a model that decide the sizes of memory."""

    model_len_max: int
    kv_values_per_token: int
    """How many numbers the keys and values of one token have, over all layers."""


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Types of numbers by the library's names, and the bytes of one key or value."""

    inference: str
    kv: str
    kv_bytes: float
    activation_group: int

    def weights(self, parameter_count: int) -> str:
        """The format of the weights of a model of this size: `float16`, or `packed`.

        In bfloat16 the matrix units need 16-bit numbers. Unpacking weights takes a third of every
        pass at 16 sequences. But unpacked weights take twice the memory, and reading memory is what
        limits a large model.
        """
        is_small = parameter_count <= UNPACKED_PARAMETERS_MAX
        return "float16" if self.inference == "bf16" and is_small else "packed"


def refusal(header: GgufHeader, model_len_max: int | None = None) -> str | None:
    """Why OpenVINO cannot run this GGUF with sequences of this length; None when it can."""
    family = header.architecture
    if header.part_count > 1:
        return f"it comes in {header.part_count} parts, and the converter reads single files"
    if family not in ARCHITECTURES:
        known = f"its architecture is {family}, and OpenVINO reads {', '.join(ARCHITECTURES)}"
        return f"{known}: {_GEMMA}" if family.startswith("gemma") else known
    unknown = sorted(header.weight_types - WEIGHT_TYPES)
    if unknown:
        return f"it has weights of type {', '.join(unknown)}, which cannot be converted"
    if header.metadata.get(f"{family}.expert_count"):
        return "it is a mixture of experts"
    if not header.context_length or not header.kv_bytes_per_token:
        return "its header does not say how long its sequences are, or how large their memory"
    strange = sorted(header.tensor_kinds - TENSORS[family])
    if strange:
        return f"it has {', '.join(strange[:3])}, which OpenVINO's reader ignores"
    length, needed = _length_max(header), model_len_max or 0
    # A length that no backend can run is no reason against this one.
    if length < needed <= header.context_length:
        return (
            f"it computes sequences beyond {length} tokens in another way, and {needed} are wanted"
        )
    return _rotary_refusal(header) or _tokenizer_refusal(header)


def _rotary_refusal(header: GgufHeader) -> str | None:
    family = header.architecture
    scaling = header.metadata.get(f"{family}.rope.scaling.type", "none")
    if scaling not in SCALINGS:
        return f"its rotary embedding is stretched by the rule {scaling!r}, which is not known"
    head, rotated = head_lengths(header)
    if rotated != head and family != "phi3":
        return f"it rotates {rotated} of the {head} numbers of a head, and OpenVINO's reader all"
    if not 0 < rotated <= head or rotated % 2 or head % 2:
        return f"its heads have {head} numbers, and {rotated} of them are to be rotated in pairs"
    return None


def head_lengths(header: GgufHeader) -> tuple[int, int]:
    """How many numbers the key of one head has, and how many of them are rotated."""
    family, metadata = header.architecture, header.metadata
    own = header.embedding_length // max(1, header.head_count)
    head = metadata.get(f"{family}.attention.key_length", own)
    rotated = metadata.get(f"{family}.rope.dimension_count", head)
    return (head if isinstance(head, int) else 0), (rotated if isinstance(rotated, int) else 0)


def _tokenizer_refusal(header: GgufHeader) -> str | None:
    kind = header.metadata.get("tokenizer.ggml.model", "")
    pre = header.metadata.get("tokenizer.ggml.pre", "")
    if kind not in ("gpt2", "llama"):
        return f"its tokenizer is of the kind {kind!r}, and only gpt2 and llama are known"
    if kind == "gpt2" and pre not in SPLITS:
        return f"its text is cut by the rules {pre!r}, which are not known"
    return None


def is_exported(model: Path) -> bool:
    """Whether the path is the folder of a model exported for OpenVINO."""
    return all((model / name).is_file() for name in FILES)


def facts(source: Path) -> Facts:
    """The facts of a GGUF or of an exported folder. Raises ModelError."""
    if source.is_dir():
        return _facts_of_folder(source)
    header = read_header(source)
    return Facts(_length_max(header), header.kv_bytes_per_token // 2)


def _length_max(header: GgufHeader) -> int:
    """The longest sequence that the model computes in one way.

    Beyond the original length some models use other factors for the whole sequence. Beyond its
    window a token of Phi 3 does not see all tokens before it.
    """
    assert header.context_length, "A header without it is refused earlier"
    family, length = header.architecture, header.context_length
    names = ["attention.sliding_window"] if family == "phi3" else []
    names += ["rope.scaling.original_context_length"] if FACTORS_LONG in header.tensor_kinds else []
    found = (header.metadata.get(f"{family}.{name}") for name in names)
    return min([length, *(each for each in found if isinstance(each, int) and each > 0)])


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


def dtypes(dtype: str, kv_cache_dtype: str, threads: int, *, is_half: bool | None = None) -> Dtypes:
    """The library's names for the settings; measurements decided what `auto` is (decision 0010).

    `is_half` says whether `auto` is bfloat16; with None, the processor decides.
    """
    # Numbers of 8 bits have scales and offsets beside them.
    sizes = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "u8": 1.25}
    # On one thread the library crashes (division by zero) on bfloat16 with unpacked weights.
    if is_half is None:
        is_half = threads > 1 and read_processor().has_bfloat16
    inference = SHORT_NAMES.get(dtype) or ("bf16" if is_half else "f32")
    # Rounding activations doubles the speed of float32, and costs as much quality as in llama.cpp.
    # A user who gives float32 gets no rounding; with other types it has no effect.
    activation_group = ACTIVATION_GROUP if dtype == "auto" and inference == "f32" else 0
    kv = inference
    if kv_cache_dtype != "auto":
        kv = SHORT_NAMES.get(kv_cache_dtype, kv_cache_dtype)
    if inference == "bf16" and threads == 1:
        raise ConfigError(
            "dtype bfloat16 on one thread makes OpenVINO crash on some models; "
            "give it two threads, or leave dtype out."
        )
    if kv not in KV_KINDS[inference]:
        allowed = " or ".join(LONG_NAMES[each] for each in KV_KINDS[inference])
        raise ConfigError(
            f"kv_cache_dtype {LONG_NAMES.get(kv, kv)} does not go with dtype "
            f"{LONG_NAMES[inference]}, which takes {allowed}; change one of them."
        )
    return Dtypes(inference, kv, sizes[kv], activation_group)
