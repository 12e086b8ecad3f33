"""The tokenizer of an exported folder: its tokenizer.json, read by the library that wrote it.

Made by `tokenizer`; any thread may call `encode`. It supports two kinds, whose tokens have known
bytes: byte-level merging, and merging with a fallback token for each byte. Files are read with size
limits. A missing or damaged file gives a ModelError of one sentence.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.core.request import checked_bytes
from jitney.errors import ModelError
from jitney.models import token_names
from jitney.models.folder import read_json, read_text
from jitney.models.gguf_vocabulary import TOKENS_MAX
from jitney.tokenizers.byte_pairs import (
    WINDOW_CHARACTERS,
    WORDS_REPEATED,
    encode_in_windows,
    with_replacements,
)
from jitney.tokenizers.token_roles import is_structure

TOKENIZER = "tokenizer.json"
TOKENIZER_BYTES_MAX = 128 << 20
TOKENIZER_CONFIG_BYTES_MAX = 16 << 20
TEMPLATE_BYTES_MAX = 1 << 20

_PREFIXING = frozenset({"Metaspace", "Prepend"})
"""Steps that put a space before the text. They would put one before each window, too."""

Json = Mapping[str, Any]  # Any: whatever a file says


class FolderTokenizer:
    """Turns text into tokens, and describes the tokens, for an exported folder."""

    vocabulary: Vocabulary

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer of a folder. Raises ModelError."""
        path = folder / TOKENIZER
        stored = read_json(path, TOKENIZER_BYTES_MAX)
        content = read_text(path, TOKENIZER_BYTES_MAX)
        self._special = _built(path, content)
        self._plain = _built(path, content)
        # Names of special tokens are text like any other.
        self._plain.encode_special_tokens = True
        # The library has read it, so there is a model.
        model = stored["model"]
        steps = list(_steps(stored.get("pre_tokenizer"))) + list(_steps(stored.get("normalizer")))
        is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
        added = self._special.get_added_tokens_decoder()
        names = {token: name for name, token in self._special.get_vocab().items()}
        _check(
            path, names, is_byte_level=is_byte_level, falls_back=bool(model.get("byte_fallback"))
        )
        config_files = _ConfigFiles(folder, self._special, names)
        control = {token for token, each in added.items() if each.special}
        control |= {token for token in config_files.endings if token in added}
        # Some exports mark these as ordinary, but a user's text must not be able to write them.
        control |= {token for token in added if is_structure(names[token])}
        unknown = self._special.token_to_id(model.get("unk_token") or "")
        control |= set() if unknown is None else {unknown}
        pieces = [b""] * config_files.count
        for token, name in names.items():
            if token in added:
                pieces[token] = name.encode()
            elif is_byte_level:
                pieces[token] = token_names.bytes_of_characters(name)
            else:
                byte = token_names.named_byte(name)
                pieces[token] = byte or token_names.bytes_without_marks(name)
        self.vocabulary = Vocabulary(
            pieces=tuple(pieces),
            control=frozenset(control),
            eos_tokens=tuple(sorted(config_files.endings)),
            bos_token=config_files.bos,
            adds_bos=config_files.adds_bos,
            chat_template=config_files.chat_template,
        )
        ids = {name: token for token, name in names.items() if token not in control}
        spell = _bytes_of if is_byte_level else _characters_of
        self._spellings = {token: spell(names[token], ids) for token in control}
        if unknown is not None:
            self._spellings[unknown] = ()
        self._words_repeated = max([WORDS_REPEATED, *(len(names[token]) + 1 for token in added)])
        self._window = limits.PROMPT_CHARACTERS_MAX
        if is_byte_level and not any(_adds_prefix(step) for step in steps):
            self._window = WINDOW_CHARACTERS

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text. With `special`, names of control tokens become those tokens."""
        checked_bytes(text)
        tokenizer = self._special if special else self._plain
        tokens = encode_in_windows(tokenizer, text, self._window, self._words_repeated)
        # An ordinary merge may also give a control token.
        return tokens if special else with_replacements(tokens, self._spellings)


def _bytes_of(text: str, ids: Mapping[str, int]) -> tuple[int, ...]:
    """The tokens of a text byte by byte, in a byte-level vocabulary."""
    characters = token_names.byte_characters()
    return tuple(ids[name] for byte in text.encode() if (name := characters[byte]) in ids)


def _characters_of(text: str, ids: Mapping[str, int]) -> tuple[int, ...]:
    """The tokens of a text by character; a character without a token becomes its bytes."""
    tokens: list[int] = []
    for each in text.replace(" ", token_names.SPACE_MARK):
        names = [each] if each in ids else map(token_names.byte_name, each.encode())
        tokens += [ids[name] for name in names if name in ids]
    return tuple(tokens)


class _ConfigFiles:
    """The values from the files beside tokenizer.json."""

    def __init__(
        self, folder: Path, tokenizer: tokenizers.Tokenizer, names: Mapping[int, str]
    ) -> None:
        self._tokenizer = tokenizer
        config = read_json(folder / "config.json")
        generation = _read_optional(folder / "generation_config.json")
        settings = _read_optional(folder / "tokenizer_config.json")
        self.count = _count(folder / "config.json", config, max(names) + 1)
        endings = _ids(generation.get("eos_token_id")) or _ids(config.get("eos_token_id"))
        ending = self._named(settings.get("eos_token"))
        endings |= set() if ending is None else {ending}
        self.endings = frozenset(token for token in endings if token in names)
        bos = self._named(settings.get("bos_token"))
        if bos is None:
            bos = next(
                (token for token in _ids(config.get("bos_token_id")) if token in names), None
            )
        self.bos = bos
        self.adds_bos = bos is not None and self._adds(settings.get("add_bos_token"), bos)
        self.chat_template = _chat_template(folder, settings)

    def _named(self, token: object) -> int | None:
        """The token of a name. The file has the name itself, or an object with the name."""
        name = token.get("content") if isinstance(token, dict) else token
        return self._tokenizer.token_to_id(name) if isinstance(name, str) else None

    def _adds(self, answer: object, bos: int) -> bool:
        if isinstance(answer, bool):
            return answer
        return self._tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos]


def _built(path: Path, content: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # The library raises no narrower class.
        lines = str(error).splitlines() or ["no reason given"]
        raise ModelError(
            f"{path} is not a tokenizer ({lines[0].rstrip('.')}); export the model again."
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _check(path: Path, names: Mapping[int, str], *, is_byte_level: bool, falls_back: bool) -> None:
    """Refuse a vocabulary whose tokens cannot be turned into bytes."""
    if not names:
        raise ModelError(f"{path} has no tokens; export the model again.")
    if max(names) >= TOKENS_MAX:
        raise ModelError(f"{path} has a token {max(names)}; at most {TOKENS_MAX} tokens are read.")
    known = set(names.values())
    if falls_back and not all(token_names.byte_name(byte) in known for byte in range(256)):
        raise ModelError(f"{path} has no token for some byte; export the model again.")
    if not is_byte_level and not falls_back:
        raise ModelError(
            f"{path} is neither of the byte-level kind nor falls back to bytes; no other kind is "
            "supported. Use a GGUF of the model with the llama.cpp backend."
        )


def _steps(value: object) -> Iterator[Json]:
    """A normalizer or pre-tokenizer, and the steps inside it."""
    if isinstance(value, dict):
        yield value
        for name in ("pretokenizers", "normalizers"):
            parts = value.get(name)
            for part in parts if isinstance(parts, list) else ():
                yield from _steps(part)


def _adds_prefix(step: Json) -> bool:
    return step.get("type") in _PREFIXING or step.get("add_prefix_space") is True


def _read_optional(path: Path) -> Json:
    return read_json(path, TOKENIZER_CONFIG_BYTES_MAX) if path.exists() else {}


def _count(path: Path, config: Json, count: int) -> int:
    """The number of tokens of the model; often a little more than its tokenizer has."""
    size = config.get("vocab_size", count)
    if not isinstance(size, int) or isinstance(size, bool) or not count <= size <= TOKENS_MAX:
        raise ModelError(
            f"{path} says that the vocabulary has {size!r} tokens, but {TOKENIZER} has {count}; "
            "export the model again."
        )
    return size


def _ids(value: object) -> set[int]:
    """The ids of tokens in a value: one, several or none."""
    values = value if isinstance(value, list) else [value]
    return {each for each in values if isinstance(each, int) and not isinstance(each, bool)}


def _chat_template(folder: Path, settings: Json) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_text(path, TEMPLATE_BYTES_MAX) or None
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) and found else None
