"""The tokenizer in a GGUF, as plain values.

Pure file reading, any thread, no native code. As strict as the reader of headers: a damaged or
hostile file only causes a ModelError. Lists are as long as the vocabulary, no two tokens are the
same, and ids lie inside the vocabulary. The tokenizers know what the values mean for text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from jitney.models.gguf_fields import Fields, Value, read_fields

Kind = TypeVar("Kind", str, bool)

TOKENS_MAX = 1_048_576
TOKEN_CHARACTERS_MAX = 65_536

_PREFIX = "tokenizer.ggml."
_TOKENS = f"{_PREFIX}tokens"
_TYPES = f"{_PREFIX}token_type"
_SCORES = f"{_PREFIX}scores"
_MERGES = f"{_PREFIX}merges"
_TEMPLATE = "tokenizer.chat_template"
_WHOLE = frozenset({_TOKENS, _TYPES, _SCORES, _MERGES, _TEMPLATE})
_ROLES = (
    *("bos", "eos", "eot", "eom", "unknown"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
)
_OLD_ROLES: Mapping[str, str] = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """The vocabulary in a file, and its settings."""

    path: Path
    name: str
    """The name of the model; empty when the file has none."""
    model: str
    """The kind of tokenizer: "gpt2" merges by rank, "llama" by score."""
    pre: str
    """How text is split before merging; empty when the file does not say."""
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    """Empty when the file has none: then all tokens are normal."""
    scores: tuple[float, ...]
    """Empty when the file has none: then all are equal."""
    merges: tuple[str, ...]
    roles: Mapping[str, int]
    """Special tokens by role, such as "bos" and "eos"; only those that the file names."""
    adds_bos: bool | None
    adds_space_prefix: bool | None
    chat_template: str | None


def read_vocabulary(path: Path) -> GgufVocabulary:
    """The vocabulary of a GGUF. Raises ModelError when it is missing, damaged or cut short."""
    return read_fields(path, _read_vocabulary)


def _read_vocabulary(fields: Fields) -> GgufVocabulary:
    found = _VocabularyKeys(fields, fields.metadata(fields.counts().keys, whole=_WHOLE))
    tokens = found.tokens()
    return GgufVocabulary(
        path=fields.path,
        name=found.text("general.name") or "",
        model=found.text(f"{_PREFIX}model") or "",
        pre=found.text(f"{_PREFIX}pre") or "",
        tokens=tokens,
        types=found.types(len(tokens)),
        scores=found.scores(len(tokens)),
        merges=found.texts(_MERGES),
        roles=found.roles(len(tokens)),
        adds_bos=found.answer(f"{_PREFIX}add_bos_token"),
        adds_space_prefix=found.answer(f"{_PREFIX}add_space_prefix"),
        chat_template=found.text(_TEMPLATE),
    )


class _VocabularyKeys:
    """The metadata of one file. Checks the type of each value."""

    def __init__(self, fields: Fields, metadata: Mapping[str, Value]) -> None:
        self._fields = fields
        self._metadata = metadata

    def text(self, key: str) -> str | None:
        return self._of(str, key, "not a text")

    def answer(self, key: str) -> bool | None:
        return self._of(bool, key, "neither true nor false")

    def _of(self, kind: type[Kind], key: str, what: str) -> Kind | None:
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, kind):
            raise self._fields.damaged(f"{key} is {what}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._metadata.get(key, ())
        # All elements of an array have the type of the first.
        if not isinstance(values, tuple) or not all(isinstance(each, str) for each in values[:1]):
            raise self._fields.damaged(f"{key} is not a list of texts")
        return cast(tuple[str, ...], values)

    def tokens(self) -> tuple[str, ...]:
        tokens = self.texts(_TOKENS)
        if not tokens:
            raise self._fields.damaged("it has no tokens")
        if len(tokens) > TOKENS_MAX:
            raise self._fields.damaged(f"it claims {len(tokens)} tokens")
        longest = max(map(len, tokens))
        if longest > TOKEN_CHARACTERS_MAX:
            raise self._fields.damaged(f"a token has {longest} characters")
        # The name that llama.cpp gives to a token without one.
        if "" in tokens:
            tokens = tuple(token or f"[EMPTY_{at}]" for at, token in enumerate(tokens))
        if len(set(tokens)) != len(tokens):
            raise self._fields.damaged("two of its tokens are the same")
        return tokens

    def types(self, count: int) -> tuple[int, ...]:
        values = self._numbers(_TYPES, count)
        if not all(isinstance(each, int) for each in values[:1]):
            raise self._fields.damaged(f"{_TYPES} is not a list of whole numbers")
        return cast(tuple[int, ...], values)

    def scores(self, count: int) -> tuple[float, ...]:
        values = self._numbers(_SCORES, count)
        if any(each != each for each in values):
            raise self._fields.damaged("a score is not a number")
        return values

    def _numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A number for each token; empty when the file has no such list."""
        values = self._metadata.get(key)
        if values is None:
            return ()
        if not isinstance(values, tuple) or any(
            isinstance(each, str | bool) for each in values[:1]
        ):
            raise self._fields.damaged(f"{key} is not a list of numbers")
        if len(values) < count:
            raise self._fields.damaged(f"{key} has {len(values)} elements for {count} tokens")
        return cast(tuple[float, ...], values[:count])

    def roles(self, count: int) -> dict[str, int]:
        keys = {f"{_PREFIX}{role}_token_id": role for role in _ROLES}
        keys |= {f"{_PREFIX}{old}_token_id": role for old, role in _OLD_ROLES.items()}
        found: dict[str, int] = {}
        for key, role in keys.items():
            value = self._metadata.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise self._fields.damaged(f"{key} is not a whole number")
            # Some files name a token that does not exist; llama.cpp ignores it.
            if 0 <= value < count:
                found[role] = value
        return found
