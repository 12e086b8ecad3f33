"""The role of each token of a GGUF (text, structure, the end of an answer) and its bytes.

Pure functions on plain values, any thread. The rules are those of llama.cpp. It knows some tokens
by their names, because many files say nothing, or something wrong, about them.

Tests: tests/unit/tokenizers/test_tokenizer.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jitney.core.backend import Vocabulary
from jitney.errors import ModelError
from jitney.models.gguf_vocabulary import GgufVocabulary
from jitney.models.token_names import named_byte

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

_ENDINGS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>"),
        *("<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>"),
        *("[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>"),
        *("<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
    }
)


def _infill(word: str, short: str, of_deepseek: str) -> tuple[str, ...]:
    return (
        *(f"<|fim_{word}|>", f"<fim-{word}>", f"<fim_{word}>"),
        *(f"<\uff5cfim\u2581{of_deepseek}\uff5c>", f"<{short}>", f"\u2581<{short}>"),
        *(f"<|code_{word}|>", f"<|{word}|>"),
    )


_INFILL: Mapping[str, tuple[str, ...]] = {
    "fim_pre": _infill("prefix", "PRE", "begin"),
    "fim_suf": _infill("suffix", "SUF", "hole"),
    "fim_mid": _infill("middle", "MID", "end"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Names of the tokens for filling in the middle, used where the file does not name the token."""
_INFILL_ENDS = ("fim_pad", "fim_rep", "fim_sep")
_VISIBLE = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
_HARMONY = {"<|return|>", "<|flush|>"}
_HARMONY_CALLS = {"<|call|>", "<|calls|>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The roles of the tokens."""

    kinds: tuple[int, ...]
    """For each token one of the constants above, or another number if it is not used."""
    endings: frozenset[int]
    """Tokens that end an answer."""
    bos: int | None


def is_structure(name: str) -> bool:
    """Whether a token of this name ends an answer or is for filling in the middle."""
    return name in _ENDINGS or any(name in names for names in _INFILL.values())


def assign_roles(stored: GgufVocabulary, *, bos: int, eos: int) -> Roles:
    """The roles by llama.cpp's rules. `bos` and `eos` are used if the file has none."""
    count = len(stored.tokens)
    ids = {token: at for at, token in enumerate(stored.tokens)}
    kinds = list(stored.types) or [NORMAL] * count
    endings = {ids[name] for name in _ENDINGS & ids.keys()}
    structure = set(endings)
    for role, names in _INFILL.items():
        token = stored.roles.get(role)
        if token is None:
            token = next((ids[name] for name in names if name in ids), None)
            structure |= set() if token is None else {token}
        if token is not None and role in _INFILL_ENDS:
            endings.add(token)
    for token in structure:
        kinds[token] = UNKNOWN if kinds[token] == UNKNOWN else CONTROL
    for name in _VISIBLE & ids.keys():
        kinds[ids[name]] = USER_DEFINED
    named = dict(stored.roles)
    for role, token in (("bos", bos), ("eos", eos)):
        if token < count:
            named.setdefault(role, token)
    endings |= {named[role] for role in ("eos", "eot", "eom") if role in named}
    _remove_false_endings(stored.tokens, ids, kinds, endings)
    return Roles(kinds=tuple(kinds), endings=frozenset(endings), bos=named.get("bos"))


def _remove_false_endings(
    tokens: tuple[str, ...], ids: Mapping[str, int], kinds: list[int], endings: set[int]
) -> None:
    """Remove tokens that end answers in most model families, but not in this one."""
    names = {tokens[token] for token in endings}
    if names & _HARMONY_CALLS and names & _HARMONY and "<|end|>" in names:
        endings.discard(ids["<|end|>"])
        kinds[ids["<|end|>"]] = USER_DEFINED
    if {"<|tool_response>", "</s>"} <= names:
        endings.discard(ids["</s>"])
        kinds[ids["</s>"]] = NORMAL


def describe(
    stored: GgufVocabulary, roles: Roles, *, adds_bos: bool, bytes_of: Callable[[str], bytes]
) -> Vocabulary:
    """The vocabulary for the engine. `bytes_of` gives the bytes of a normal token."""
    pieces = []
    for token, kind in zip(stored.tokens, roles.kinds, strict=True):
        if kind == NORMAL:
            pieces.append(bytes_of(token))
        elif kind in (CONTROL, UNKNOWN, USER_DEFINED):
            pieces.append(token.encode())
        elif kind == BYTE:
            byte = named_byte(token)
            if byte is None:
                raise ModelError(
                    f"{stored.path} has a damaged vocabulary: {token[:40]!r} is marked as a byte."
                )
            pieces.append(byte)
        else:
            pieces.append(b"")
    template = (stored.chat_template or "").partition("\0")[0]
    return Vocabulary(
        pieces=tuple(pieces),
        control=frozenset(
            token for token, kind in enumerate(roles.kinds) if kind in (CONTROL, UNKNOWN)
        ),
        eos_tokens=tuple(sorted(roles.endings)),
        bos_token=roles.bos,
        adds_bos=adds_bos if stored.adds_bos is None else stored.adds_bos,
        chat_template=template or None,
    )
