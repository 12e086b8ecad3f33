"""A model small enough to be written by the tests themselves: nothing is downloaded to test."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

CONTROL_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>")
MERGES = ("t h", "th e", "i n", "Ġ the", "a n", "e r", "Ġ a", "o n")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """The sizes of the tiny model; rows are multiples of 32, so that it can be quantised."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    heads_kv: int = 2
    inner: int = 256
    context: int = 512
    architecture: str = "llama"


def byte_characters() -> list[str]:
    """The character that stands for each byte in vocabularies of the GPT-2 kind."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(byte if byte in plain else next(shifted)) for byte in range(256)]


def write_tiny_gguf(path: Path, *, seed: int = 1, shape: TinyShape | None = None) -> None:
    """A valid GGUF of random weights: a llama of two layers with a byte-level vocabulary."""
    shape = shape or TinyShape()
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_name("tiny")
    writer.add_file_type(0)
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
        writer.add_tensor(name, weights)
    finish(writer)


def add_vocabulary(writer: gguf.GGUFWriter) -> int:
    """A byte-level vocabulary with a few merges; how many tokens it has."""
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
    """Write all that was added, and close the file."""
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
        # Logits far enough apart that rounding does not decide which is the best.
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
