"""Which models OpenVINO runs, and with which numbers. Light: nothing of the library is loaded.

Asked before a model is converted, on any thread. The library's reader builds plain decoders of a
few architectures and passes over what it does not know. Some of it is mended when a model is
converted (`recast`, `rotary`); files with anything else would answer wrongly, and are refused here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.machine.processor import CPUINFO, read_processor
from jitney.errors import ConfigError, ModelError
from jitney.models.folder import read_json
from jitney.models.gguf import GgufHeader, read_header
from jitney.tokenizers.splits import SPLITS

FILES = ("openvino_model.xml", "openvino_model.bin")
"""What a converted or exported model consists of."""

FREE = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Tensors of factors that stretch a rotary embedding: for sequences of every length, and for those
up to the original length and beyond."""

_PLAIN = frozenset(
    {
        *("token_embd.weight", "output_norm.weight", "output.weight"),
        *("attn_norm.weight", "attn_output.weight"),
        *("ffn_norm.weight", "ffn_up.weight", "ffn_down.weight"),
    }
)
_APART = _PLAIN | {"attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight"}
TENSORS: Mapping[str, frozenset[str]] = {
    "llama": _APART | {FREE, SHORT, LONG},
    "qwen2": _APART | {"attn_q.bias", "attn_k.bias", "attn_v.bias"},
    "qwen3": _APART | {"attn_q_norm.weight", "attn_k_norm.weight"},
    "smollm3": _APART,
    "phi3": _PLAIN | {"attn_qkv.weight", SHORT, LONG},
}
"""What the conversion makes use of, by architecture: each was compared with llama.cpp."""
ARCHITECTURES = tuple(TENSORS)
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("gemma", "gemma2", "gemma3", "gemma3n"),
        "it scales its embeddings and has norms after its layers, which the reader does not build",
    )
}
"""Why an architecture that people have is not among those."""
SCALINGS = ("none", "linear", "yarn", "longrope")
"""Ways to stretch a rotary embedding, by llama.cpp's names."""
WEIGHT_TYPES = frozenset(
    {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
    }
)
"""Those that `requantize` reads or the library takes; exotic ones are left to llama.cpp."""
ACTIVATION_GROUP = 32
SHORT_NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "uint8": "u8"}
LONG_NAMES = {short: name for name, short in SHORT_NAMES.items()}
"""Kinds of numbers by the settings' names and by the library's."""
KV_KINDS = {"f32": ("f32", "f16", "u8"), "bf16": ("bf16", "f16", "u8")}
"""What the attention kernels can keep keys and values as, for each kind of computation."""
BLOCK_TOKENS = 32
"""The CPU plugin's attention kernel takes blocks of this size and no other."""

UNPACKED_PARAMETERS_MAX = 1_000_000_000


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
    activation_group: int

    def weights(self, parameter_count: int) -> str:
        """How the weights of a model of this size are kept: `float16`, or `packed`.

        In bfloat16 the matrix units want 16-bit numbers, and unpacking weights in every pass costs
        a third of it at 16 sequences; but unpacked ones take twice the memory, and the time to
        read it, which is what a large model waits for.
        """
        is_small = parameter_count <= UNPACKED_PARAMETERS_MAX
        return "float16" if self.inference == "bf16" and is_small else "packed"


def refusal(header: GgufHeader, model_len_max: int | None = None) -> str | None:
    """Why OpenVINO cannot run this GGUF, with sequences of that length, or None when it can."""
    family = header.architecture
    if header.part_count > 1:
        return f"it comes in {header.part_count} parts, and the converter reads single files"
    if family not in ARCHITECTURES:
        known = f"its architecture is {family}, and OpenVINO reads {', '.join(ARCHITECTURES)}"
        return f"{known}: {_REASONS[family]}" if family in _REASONS else known
    unknown = sorted(header.weight_types - WEIGHT_TYPES)
    if unknown:
        return f"it has weights of type {', '.join(unknown)}, which cannot be converted"
    if header.metadata.get(f"{family}.expert_count"):
        return "it is a mixture of experts"
    if not header.context_length or not header.kv_bytes_per_token:
        return "its header does not say how long its sequences are, or how large their memory"
    strange = sorted(header.tensor_kinds - TENSORS[family])
    if strange:
        return f"it has {', '.join(strange[:3])}, which OpenVINO's reader passes over"
    length, wanted = _length_max(header), model_len_max or 0
    # What no backend can do is no reason against this one.
    if length < wanted <= header.context_length:
        return (
            f"it computes sequences beyond {length} tokens in another way, and {wanted} are wanted"
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
    """Numbers that the key of one head has, and how many of them are rotated."""
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
    """How long a sequence may be: as long as the model computes all of it in the same way.

    Beyond their original length some models take other factors for the whole sequence, and beyond
    their window Phi 3's tokens do not see all that came before.
    """
    assert header.context_length, "refused before"
    family, length = header.architecture, header.context_length
    names = ["attention.sliding_window"] if family == "phi3" else []
    names += ["rope.scaling.original_context_length"] if LONG in header.tensor_kinds else []
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


def dtypes(
    dtype: str,
    kv_cache_dtype: str,
    threads: int,
    cpuinfo: Path = CPUINFO,
    *,
    is_half: bool | None = None,
) -> Dtypes:
    """The library's names for the settings; what `auto` is was measured (decision 0010).

    `is_half` says whether `auto` is bfloat16; None asks the processor.
    """
    # Scales and offsets stand beside numbers of 8 bits.
    sizes = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "u8": 1.25}
    # On one thread the library divides by zero while it compiles bfloat16 for unpacked weights.
    if is_half is None:
        is_half = threads > 1 and read_processor(cpuinfo).has_bfloat16
    inference = SHORT_NAMES.get(dtype) or ("bf16" if is_half else "f32")
    # Rounding activations doubles the speed of float32, and costs what it costs in llama.cpp. Who
    # asks for float32 gets it; elsewhere it has no effect.
    activation_group = ACTIVATION_GROUP if dtype == "auto" and inference == "f32" else 0
    kv = SHORT_NAMES.get(kv_cache_dtype, inference)
    if inference == "bf16" and threads == 1:
        raise ConfigError(
            "dtype bfloat16 on one thread makes OpenVINO crash on some models; "
            "give it two threads, or leave dtype out."
        )
    if kv not in KV_KINDS[inference]:
        allowed = " or ".join(LONG_NAMES[each] for each in KV_KINDS[inference])
        raise ConfigError(
            f"kv_cache_dtype {LONG_NAMES[kv]} does not go with dtype {LONG_NAMES[inference]}, "
            f"which takes {allowed}; change one of them."
        )
    return Dtypes(inference, kv, sizes[kv], activation_group)
