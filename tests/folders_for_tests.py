"""Exported model folders made from a GGUF: what an exporter would have written beside the model."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from jitney.models.gguf import read_header
from jitney.models.gguf_vocabulary import GgufVocabulary, read_vocabulary

CONTROL = 3


def write_folder(folder: Path, source: Path, *, digits_apart: bool = False) -> None:
    """Everything but the model itself, which is not looked at by a tokenizer."""
    stored, header = read_vocabulary(source), read_header(source)
    family = header.architecture
    (folder / "tokenizer.json").write_text(
        tokenizer_of(stored, digits_apart=digits_apart).to_str(), encoding="utf-8"
    )
    config = {
        "hidden_size": header.embedding_length,
        "num_attention_heads": header.head_count,
        "num_key_value_heads": header.metadata[f"{family}.attention.head_count_kv"],
        "num_hidden_layers": header.layer_count,
        "max_position_embeddings": header.context_length,
        "vocab_size": len(stored.tokens),
        "bos_token_id": stored.roles["bos"],
        "eos_token_id": stored.roles["eos"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    named = {
        "bos_token": stored.tokens[stored.roles["bos"]],
        "eos_token": {"content": stored.tokens[stored.roles["eos"]], "special": True},
        "chat_template": stored.chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    endings = [
        token
        for token, name in enumerate(stored.tokens)
        if name in ("<|im_end|>", "<|endoftext|>", "<reponame>")
    ]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": endings}))


def tokenizer_of(stored: GgufVocabulary, *, digits_apart: bool) -> Tokenizer:
    """The byte-level tokenizer of a GGUF in the library's own terms."""
    ids = {token: at for at, token in enumerate(stored.tokens)}
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in stored.merges)]
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges))
    cut = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = (
        Sequence([Digits(individual_digits=True), cut]) if digits_apart else cut
    )
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(
        [
            AddedToken(name, special=True, normalized=False)
            for name, kind in zip(stored.tokens, stored.types, strict=True)
            if kind != 1
        ]
    )
    return tokenizer
