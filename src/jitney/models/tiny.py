"""Writes a model of a few hundred thousand weights, to try a backend with.

The weights are random, from a seed, so its answers are known. Used at set-up and by the tests.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from jitney.models.token_names import byte_characters

CONTROL_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>")
MERGES = ("t h", "th e", "i n", "Ġ the", "a n", "e r", "Ġ a", "o n")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """The sizes of the tiny model. Rows are multiples of 32, so that it can be quantised."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    heads_kv: int = 2
    inner: int = 256
    context: int = 512
    architecture: str = "llama"
    packed: bool = False
    """Whether its matrices are quantised (Q8_0), as in most real models."""


def write_tiny_gguf(
    path: Path, *, seed: int = 1, shape: TinyShape | None = None, part_tensors: int = 0
) -> None:
    """Write a valid GGUF of random weights: a llama of two layers, with a byte-level vocabulary.

    With `part_tensors` it is written in parts of that many tensors, with the splitter's names.
    """
    shape = shape or TinyShape()
    writer = gguf.GGUFWriter(path, shape.architecture, split_max_tensors=part_tensors)
    writer.add_name("tiny")
    writer.add_file_type(7 if shape.packed else 0)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    vocabulary = add_vocabulary(writer)
    for name, weights in _weights(shape, vocabulary, seed).items():
        if shape.packed and weights.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(weights, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weights)
    finish(writer)


def add_vocabulary(writer: gguf.GGUFWriter) -> int:
    """Add a byte-level vocabulary with a few merges. Returns the number of tokens."""
    tokens = [*CONTROL_NAMES, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, unknown, normal = 3, 2, 1
    writer.add_token_types([control] * 3 + [unknown] + [normal] * (len(tokens) - 4))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write all data, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(shape: TinyShape, vocabulary: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        drawn = random.standard_normal((rows, columns)) * (gain / columns**0.5)
        return np.asarray(drawn, np.float32)

    width, inner = shape.width, shape.inner
    width_kv = width // shape.heads * shape.heads_kv
    ones = np.ones(width, np.float32)
    weights = {
        "token_embd.weight": matrix(vocabulary, width, width**0.5),
        "output_norm.weight": ones,
        # Logits far enough apart that rounding does not change the best one.
        "output.weight": matrix(vocabulary, width, 4.0),
    }
    for layer in range(shape.layers):
        weights |= {
            f"blk.{layer}.attn_norm.weight": ones,
            f"blk.{layer}.attn_q.weight": matrix(width, width, 2.0),
            f"blk.{layer}.attn_k.weight": matrix(width_kv, width, 2.0),
            f"blk.{layer}.attn_v.weight": matrix(width_kv, width, 2.0),
            f"blk.{layer}.attn_output.weight": matrix(width, width, 2.0),
            f"blk.{layer}.ffn_norm.weight": ones,
            f"blk.{layer}.ffn_gate.weight": matrix(inner, width, 2.0),
            f"blk.{layer}.ffn_up.weight": matrix(inner, width, 2.0),
            f"blk.{layer}.ffn_down.weight": matrix(width, inner, 2.0),
        }
    return weights


def tiny_logprobs(
    tokens: tuple[int, ...], *, seed: int = 1, shape: TinyShape | None = None
) -> npt.NDArray[np.float64]:
    """The same model in numpy: one row of log probabilities for each position."""
    shape = shape or TinyShape()
    count = len(CONTROL_NAMES) + 256 + len(MERGES)
    weights = {name: each.astype(np.float64) for name, each in _weights(shape, count, seed).items()}
    hidden = weights["token_embd.weight"][list(tokens)]
    for layer in range(shape.layers):
        own = {
            name.removeprefix(f"blk.{layer}.").removesuffix(".weight"): each
            for name, each in weights.items()
            if name.startswith(f"blk.{layer}.")
        }
        hidden = hidden + _attention(_normalised(hidden), own, shape) @ own["attn_output"].T
        inner = _normalised(hidden)
        gate = inner @ own["ffn_gate"].T
        hidden = (
            hidden + (gate / (1 + np.exp(-gate)) * (inner @ own["ffn_up"].T)) @ own["ffn_down"].T
        )
    return _log_softmax(_normalised(hidden) @ weights["output.weight"].T)


def _attention(
    hidden: npt.NDArray[np.float64], own: dict[str, npt.NDArray[np.float64]], shape: TinyShape
) -> npt.NDArray[np.float64]:
    length, size = len(hidden), shape.width // shape.heads
    query = _rotated((hidden @ own["attn_q"].T).reshape(length, shape.heads, size))
    key = _rotated((hidden @ own["attn_k"].T).reshape(length, shape.heads_kv, size))
    value = (hidden @ own["attn_v"].T).reshape(length, shape.heads_kv, size)
    key, value = (np.repeat(each, shape.heads // shape.heads_kv, axis=1) for each in (key, value))
    scores = np.einsum("qhd,khd->hqk", query, key) / size**0.5
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    mixed = np.einsum("hqk,khd->qhd", np.exp(_log_softmax(scores)), value)
    return np.asarray(mixed.reshape(length, shape.width), np.float64)


def _rotated(heads: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The rotary embedding: each pair of neighbouring numbers is rotated by its position."""
    length, _, size = heads.shape
    angles = np.outer(np.arange(length), 10_000.0 ** (-np.arange(0, size, 2) / size))
    pairs = heads[..., 0::2] + 1j * heads[..., 1::2]
    rotated = pairs * np.exp(1j * angles)[:, np.newaxis, :]
    return np.stack((rotated.real, rotated.imag), axis=-1).reshape(heads.shape)


def _normalised(hidden: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    scaled = hidden / np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + 1e-5)
    return np.asarray(scaled, np.float64)


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), np.float64)
