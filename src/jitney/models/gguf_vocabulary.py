"""The tokenizer in a GGUF, as plain values.

Pure file reading, any thread, no native code. As strict as the reader of headers: a damaged or
hostile file only causes a ModelError. Lists are as long as the vocabulary, no two tokens are the
same, and ids lie inside the vocabulary. The tokenizers know what the values mean for text.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from jitney.models.gguf_fields import GgufFields, read_fields

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


class GgufVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The vocabulary in a file, and its settings."""

    path: Path
    name: str = msgspec.field(name="general.name", default="")
    """The name of the model; empty when the file has none."""
    model: str = msgspec.field(name=f"{_PREFIX}model", default="")
    """The kind of tokenizer: "gpt2" merges by rank, "llama" by score."""
    pre: str = msgspec.field(name=f"{_PREFIX}pre", default="")
    """How text is split before merging; empty when the file does not say."""
    tokens: tuple[str, ...] = msgspec.field(name=_TOKENS, default=())
    types: tuple[int, ...] = msgspec.field(name=_TYPES, default=())
    """Empty when the file has none: then all tokens are normal."""
    scores: tuple[float, ...] = msgspec.field(name=_SCORES, default=())
    """Empty when the file has none: then all are equal."""
    merges: tuple[str, ...] = msgspec.field(name=_MERGES, default=())
    roles: dict[str, int]
    """Special tokens by role, such as "bos" and "eos"; only those that the file names."""
    adds_bos: bool | None = msgspec.field(name=f"{_PREFIX}add_bos_token", default=None)
    adds_space_prefix: bool | None = msgspec.field(name=f"{_PREFIX}add_space_prefix", default=None)
    chat_template: str | None = msgspec.field(name=_TEMPLATE, default=None)


def read_vocabulary(path: Path) -> GgufVocabulary:
    """The vocabulary of a GGUF. Raises ModelError when it is missing, damaged or cut short."""
    return read_fields(path, _read_vocabulary)


def _read_vocabulary(fields: GgufFields) -> GgufVocabulary:
    metadata = fields.metadata(whole=_WHOLE)
    ids = {name: metadata.get(f"{_PREFIX}{name}_token_id") for name in (*_ROLES, *_OLD_ROLES)}
    named = {name: token for name, token in ids.items() if token is not None}
    try:
        stored = msgspec.convert({**metadata, "path": fields.path, "roles": named}, GgufVocabulary)
    except msgspec.ValidationError as error:
        raise fields.damaged(f"a value has the wrong type ({error})") from None
    tokens = _checked_tokens(fields, stored.tokens)
    count = len(tokens)
    for key, values in ((_TYPES, stored.types), (_SCORES, stored.scores)):
        if key in metadata and len(values) < count:
            raise fields.damaged(f"{key} has {len(values)} elements for {count} tokens")
    if any(each != each for each in stored.scores[:count]):
        raise fields.damaged("a score is not a number")
    return msgspec.structs.replace(
        stored,
        tokens=tokens,
        types=stored.types[:count],
        scores=stored.scores[:count],
        # Some files name a token that does not exist; llama.cpp ignores it.
        roles={
            _OLD_ROLES.get(name, name): token
            for name, token in stored.roles.items()
            if 0 <= token < count
        },
    )


def _checked_tokens(fields: GgufFields, tokens: tuple[str, ...]) -> tuple[str, ...]:
    if not tokens:
        raise fields.damaged("it has no tokens")
    if len(tokens) > TOKENS_MAX:
        raise fields.damaged(f"it claims {len(tokens)} tokens")
    longest = max(map(len, tokens))
    if longest > TOKEN_CHARACTERS_MAX:
        raise fields.damaged(f"a token has {longest} characters")
    # The name that llama.cpp gives to a token without one.
    if "" in tokens:
        tokens = tuple(token or f"[EMPTY_{at}]" for at, token in enumerate(tokens))
    if len(set(tokens)) != len(tokens):
        raise fields.damaged("two of its tokens are the same")
    return tokens
