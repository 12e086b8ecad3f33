"""Small random checkpoints of the families that people have, one for each thing that differs.

Every weight is a number that float16 holds, stored as float32: neither llama.cpp nor the conversion
for OpenVINO rounds any, so that what differs between them is a mistake and not the storage.
"""

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.backends_for_tests import session_cache
from tests.hybrids_for_tests import HYBRIDS, Hybrid, write_hybrid
from tests.models_for_tests import add_vocabulary, finish

Floats = npt.NDArray[np.float32]

ORIGINAL = 64
"""Positions before rotary embeddings are stretched: few, so that prompts of a test see the rest."""
CONTEXT = 1024
EXPERTS_USED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFamily:
    """The sizes of a checkpoint, and what it has that others have not."""

    architecture: str
    layers: int = 2
    width: int = 128
    heads: int = 4
    heads_kv: int = 2
    head: int = 32
    inner: int = 256
    rotary_base: float = 10_000.0
    rotated: int = 0
    """Numbers of a head that are rotated; 0 means all of them."""
    metadata: Mapping[str, int | float | str] = field(default_factory=dict)
    """Keys beside the usual ones, without the name of the architecture."""
    factors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Tensors that stretch the rotary embedding: the factor of the fastest pair and the slowest."""
    has_biases: bool = False
    has_head_norms: bool = False
    has_post_norms: bool = False
    is_tied: bool = False
    """Whether the output head is the embedding."""
    is_fused: bool = False
    """Whether queries, keys and values are one matrix, and the two gates of a layer another."""
    experts: int = 0
    """Inner networks of a layer, of which two are used for a token; 0 means one for all."""


_PHI3 = TinyFamily(
    architecture="phi3",
    heads_kv=4,
    is_fused=True,
    metadata={"attention.sliding_window": CONTEXT, "rope.scaling.original_context_length": CONTEXT},
)

FAMILIES: Mapping[str, TinyFamily] = {
    "llama": TinyFamily(architecture="llama"),
    "llama-3.1": TinyFamily(
        architecture="llama", rotary_base=500_000.0, factors={"rope_freqs": (1.0, 8.0)}
    ),
    "llama-linear": TinyFamily(
        architecture="llama",
        metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama-yarn": TinyFamily(
        architecture="llama",
        metadata={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": ORIGINAL,
        },
    ),
    "mistral-nemo": TinyFamily(architecture="llama", head=64, rotary_base=1_000_000.0),
    "qwen2": TinyFamily(architecture="qwen2", rotary_base=1_000_000.0, has_biases=True),
    "qwen2.5-yarn": TinyFamily(
        architecture="qwen2",
        rotary_base=1_000_000.0,
        has_biases=True,
        is_tied=True,
        metadata={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": ORIGINAL,
        },
    ),
    "qwen3": TinyFamily(
        architecture="qwen3", head=64, rotary_base=1_000_000.0, has_head_norms=True, is_tied=True
    ),
    "smollm3": TinyFamily(architecture="smollm3", layers=4, rotary_base=5_000_000.0, is_tied=True),
    "phi3": _PHI3,
    "phi3-128k": TinyFamily(
        architecture="phi3",
        heads_kv=4,
        is_fused=True,
        metadata={
            "attention.sliding_window": 262_144,
            "rope.scaling.original_context_length": CONTEXT // 2,
            "rope.scaling.attn_factor": 1.19,
        },
        factors={"rope_factors_long": (1.0, 60.0), "rope_factors_short": (1.0, 3.0)},
    ),
    "phi4-mini": TinyFamily(
        architecture="phi3",
        rotated=24,
        is_fused=True,
        is_tied=True,
        metadata={
            "attention.sliding_window": 262_144,
            "rope.scaling.original_context_length": CONTEXT // 2,
            "rope.scaling.attn_factor": 1.19,
        },
        factors={"rope_factors_long": (1.0, 60.0), "rope_factors_short": (1.0, 3.0)},
    ),
    "gemma3": TinyFamily(
        architecture="gemma3",
        layers=6,
        head=64,
        rotary_base=1_000_000.0,
        has_head_norms=True,
        has_post_norms=True,
        is_tied=True,
        metadata={"attention.sliding_window": ORIGINAL},
    ),
}


BY_LLAMACPP: Mapping[str, Hybrid | TinyFamily] = {
    **HYBRIDS,
    # With a head of its own: tied, it says each token again.
    "gemma3": replace(FAMILIES["gemma3"], is_tied=False),
    "qwen3moe": TinyFamily(architecture="qwen3moe", head=64, has_head_norms=True, experts=8),
}
"""What only llama.cpp runs: states, windows that prompts of a test outgrow, experts."""


def family_model(name: str) -> Path:
    """The checkpoint of one of `BY_LLAMACPP`, written once in a run."""
    path = session_cache() / f"{name}.gguf"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        family = BY_LLAMACPP[name]
        if isinstance(family, Hybrid):
            # With seed 1, Falcon-H1 has a position where fused attention rounds by 0.04.
            write_hybrid(part, family, seed=2)
        else:
            write_family(part, family, seed=2)
        part.rename(path)
    return path


def write_family(path: Path, family: TinyFamily, *, seed: int = 1) -> None:
    """Write a checkpoint of random weights."""
    writer = gguf.GGUFWriter(path, family.architecture)
    writer.add_name("tiny")
    writer.add_file_type(0)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(family.width)
    writer.add_block_count(family.layers)
    writer.add_feed_forward_length(family.inner)
    writer.add_head_count(family.heads)
    writer.add_head_count_kv(family.heads_kv)
    if family.head * family.heads != family.width:
        writer.add_key_length(family.head)
        writer.add_value_length(family.head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(family.rotated or family.head)
    writer.add_rope_freq_base(family.rotary_base)
    if family.experts:
        writer.add_expert_count(family.experts)
        writer.add_expert_used_count(EXPERTS_USED)
        writer.add_expert_feed_forward_length(family.inner)
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in family.metadata.items():
        add[type(value)](f"{family.architecture}.{key}", value)
    drawn = _Drawn(seed)
    vocabulary = add_vocabulary(writer)
    weights = _outer_weights(family, vocabulary, drawn)
    for layer in range(family.layers):
        own = _attention_weights(family, drawn) | _inner_weights(family, drawn)
        weights |= {f"blk.{layer}.{name}": each for name, each in own.items()}
    for name, each in weights.items():
        writer.add_tensor(name, each)
    finish(writer)


def write_packed(source: Path, packed: Path, plain: Path) -> None:
    """A checkpoint with its matrices as Q8_0, and one with the same weights as float32."""
    reader = gguf.GGUFReader(source)
    kind = gguf.GGMLQuantizationType.Q8_0
    writers = [
        gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        for path in (packed, plain)
    ]
    for writer in writers:
        _copy_fields(reader, writer, "general.file_type")
    writers[0].add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writers[1].add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        if len(tensor.shape) < 2:
            for writer in writers:
                writer.add_tensor(tensor.name, tensor.data)
            continue
        rounded = gguf.quantize(tensor.data, kind)
        writers[0].add_tensor(tensor.name, rounded, raw_dtype=kind)
        writers[1].add_tensor(tensor.name, gguf.dequantize(rounded, kind))
    for writer in writers:
        finish(writer)


TOKENS_KEPT = 16_384
"""Of the embedded model's 49,152. Merges made the later ones from the earlier ones, so English has
nearly the same tokens, and what has a row for each token takes a third of the time."""


def beginning(source: Path, layer_count: int) -> Path:
    """A model of the first layers and tokens of another one, with its weights.

    It is made once in a run, in two seconds, by the first worker that wants it, and stands where
    conversions in `session_cache` know it again. Nobody may change it.
    """
    made = session_cache() / f"{source.stem}-{source.stat().st_size}-{layer_count}.gguf"
    with made.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _write_beginning(source, made.with_suffix(".part"), layer_count)
            made.with_suffix(".part").rename(made)
    return made


def _write_beginning(source: Path, path: Path, layer_count: int) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    _copy_fields(reader, writer, f"{architecture}.block_count")
    writer.add_block_count(layer_count)
    layers = tuple(f"blk.{index}." for index in range(layer_count))
    for tensor in reader.tensors:
        if tensor.name.startswith(layers) or not tensor.name.startswith("blk."):
            is_by_token = tensor.name in ("token_embd.weight", "output.weight")
            data = tensor.data[:TOKENS_KEPT] if is_by_token else tensor.data
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    finish(writer)


def _copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, but: str) -> None:
    kept = reader.fields["tokenizer.ggml.tokens"].contents()[:TOKENS_KEPT]
    known = set(kept)
    for name, each in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture", but)):
            continue
        outer, *inner = each.types
        value = each.contents()
        if name == "tokenizer.ggml.merges":
            value = [merge for merge in value if merge.replace(" ", "") in known]
        elif name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            value = value[:TOKENS_KEPT]
        elif name.endswith(".vocab_size"):
            value = len(kept)
        writer.add_key_value(name, value, outer, inner[-1] if inner else None)


class _Drawn:
    """Random weights that float16 holds as they are."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.5) -> Floats:
        return self._held(self._random.standard_normal((rows, columns)) * (gain / columns**0.5))

    def matrices(self, count: int, rows: int, columns: int) -> Floats:
        return np.stack([self.matrix(rows, columns) for _ in range(count)])

    def vector(self, size: int, middle: float) -> Floats:
        return self._held(middle + self._random.standard_normal(size) / 4)

    def _held(self, values: npt.NDArray[np.float64]) -> Floats:
        return values.astype(np.float16).astype(np.float32)


def _outer_weights(family: TinyFamily, vocabulary: int, drawn: _Drawn) -> dict[str, Floats]:
    width = family.width
    weights = {
        "token_embd.weight": drawn.matrix(vocabulary, width, 2.0),
        "output_norm.weight": drawn.vector(width, 1.0),
    }
    if not family.is_tied:
        weights["output.weight"] = drawn.matrix(vocabulary, width, 2.0)
    pairs = (family.rotated or family.head) // 2
    for name, (first, last) in family.factors.items():
        weights[f"{name}.weight"] = np.geomspace(first, last, pairs, dtype=np.float32)
    return weights


def _attention_weights(family: TinyFamily, drawn: _Drawn) -> dict[str, Floats]:
    width, head = family.width, family.head
    sizes = {"q": family.heads * head, "k": family.heads_kv * head, "v": family.heads_kv * head}
    weights = {
        "attn_norm.weight": drawn.vector(width, 1.0),
        "attn_output.weight": drawn.matrix(width, family.heads * head),
    }
    if family.is_fused:
        weights["attn_qkv.weight"] = drawn.matrix(sum(sizes.values()), width)
    else:
        weights |= {f"attn_{name}.weight": drawn.matrix(n, width) for name, n in sizes.items()}
    if family.has_biases:
        weights |= {f"attn_{name}.bias": drawn.vector(n, 0.0) for name, n in sizes.items()}
    if family.has_head_norms:
        weights |= {f"attn_{name}_norm.weight": drawn.vector(head, 1.5) for name in ("q", "k")}
    if family.has_post_norms:
        weights["post_attention_norm.weight"] = drawn.vector(width, 1.0)
    return weights


def _inner_weights(family: TinyFamily, drawn: _Drawn) -> dict[str, Floats]:
    width, inner = family.width, family.inner
    if count := family.experts:
        return {
            "ffn_norm.weight": drawn.vector(width, 1.0),
            "ffn_gate_inp.weight": drawn.matrix(count, width),
            "ffn_gate_exps.weight": drawn.matrices(count, inner, width),
            "ffn_up_exps.weight": drawn.matrices(count, inner, width),
            "ffn_down_exps.weight": drawn.matrices(count, width, inner),
        }
    weights = {
        "ffn_norm.weight": drawn.vector(width, 1.0),
        "ffn_up.weight": drawn.matrix(inner * (2 if family.is_fused else 1), width),
        "ffn_down.weight": drawn.matrix(width, inner),
    }
    if not family.is_fused:
        weights["ffn_gate.weight"] = drawn.matrix(inner, width)
    if family.has_post_norms:
        weights["post_ffw_norm.weight"] = drawn.vector(width, 1.0)
    return weights
