"""GGUFs with any vocabulary and next to no weights, so that llama.cpp can load them beside us."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from tests.models_for_tests import byte_characters

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
WIDTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTokens:
    """What stands in the file; `roles` are keys of the format, such as `eos_token_id`."""

    tokens: Sequence[str]
    model: str = "gpt2"
    pre: str | None = "gpt-2"
    types: Sequence[int] | None = None
    scores: Sequence[float] | None = None
    merges: Sequence[str] | None = None
    roles: dict[str, int] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)
    name: str = "tokens"
    chat_template: str | None = None


def write_tokens(path: Path, stored: StoredTokens) -> None:
    """A GGUF of one layer of zeros with that vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(stored.name)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_vocab_size(len(stored.tokens))
    writer.add_tokenizer_model(stored.model)
    if stored.pre is not None:
        writer.add_tokenizer_pre(stored.pre)
    writer.add_token_list(list(stored.tokens))
    if stored.types is not None:
        writer.add_token_types(list(stored.types))
    if stored.scores is not None:
        writer.add_token_scores(list(stored.scores))
    if stored.merges is not None:
        writer.add_token_merges(list(stored.merges))
    for key, token in stored.roles.items():
        writer.add_uint32(f"tokenizer.ggml.{key}", token)
    for key, answer in stored.answers.items():
        writer.add_bool(f"tokenizer.ggml.{key}", answer)
    if stored.chat_template is not None:
        writer.add_chat_template(stored.chat_template)
    for name, shape in _shapes(len(stored.tokens)).items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    square = (WIDTH, WIDTH)
    return {
        "token_embd.weight": (vocabulary, WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        **{f"blk.0.attn_{name}.weight": square for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}.weight": square for name in ("gate", "up", "down")},
    }


def byte_name(text: str) -> str:
    """A text in the characters that stand for its bytes."""
    characters = byte_characters()
    return "".join(characters[byte] for byte in text.encode())


def pair_merges(alphabet: str) -> list[str]:
    """Merges that join any two neighbours out of an alphabet, so that every cut can be seen.

    First the bytes of each character, then pairs of characters, then pairs of pairs.
    """
    merges: dict[str, None] = {}
    for character in alphabet:
        name = byte_name(character)
        for end in range(1, len(name)):
            merges[f"{name[:end]} {name[end]}"] = None
    for left in alphabet:
        for right in alphabet:
            merges[f"{byte_name(left)} {byte_name(right)}"] = None
    for left in alphabet:
        for right in alphabet:
            merges[f"{byte_name(left + right)} {byte_name(left + right)}"] = None
            merges[f"{byte_name(left + right)} {byte_name(right)}"] = None
    return list(merges)


def tokens_of_merges(merges: Sequence[str]) -> list[str]:
    """What the merges make, each once, after the 256 bytes."""
    made = (merge.replace(" ", "") for merge in merges)
    return list(dict.fromkeys((*byte_characters(), *made)))
