"""The tokenizer of a GGUF without llama.cpp: the same vocabulary, and the same tokens for a text.

Made by `tokenizer`; any thread may call `encode`. Before merging, it searches the text for names
of special tokens: the longest names first, each from left to right, as llama.cpp does.

Tests: tests/unit/tokenizers/test_tokenizer.py and tests/conformance/test_tokenizer.py.
"""

from pathlib import Path

from jitney.core.backend import Vocabulary
from jitney.core.request import checked_bytes
from jitney.errors import ModelError
from jitney.models.gguf_vocabulary import GgufVocabulary, read_vocabulary
from jitney.models.token_names import bytes_of_characters, bytes_without_marks
from jitney.tokenizers.byte_pairs import BytePairs
from jitney.tokenizers.scored_pairs import ScoredPairs
from jitney.tokenizers.splits import SPLITS
from jitney.tokenizers.token_roles import CONTROL, UNKNOWN, USER_DEFINED, assign_roles, describe

_BEGINNING = 5
"""The first characters of a name, which are searched for first."""
_WHITESPACE = " \t\n\v\f\r"
_STRIPPING = ("phi-3", "phi3")
"""Names of models whose special tokens remove the whitespace after them."""
_NEVER_STRIPPING = frozenset({"<unk>", "<s>", "<|endoftext|>"})


class _NamedTokens:
    """Special tokens with their names, in the order of the search."""

    def __init__(self, names: list[tuple[int, str]]) -> None:
        self._names = names
        self._beginnings = frozenset(name[:_BEGINNING] for _, name in names)

    def written_in(self, text: str) -> list[tuple[int, str]]:
        """The tokens whose names are in a text; thousands of names may begin alike."""
        written = {beginning for beginning in self._beginnings if beginning in text}
        if not written:
            return []
        return [each for each in self._names if each[1][:_BEGINNING] in written and each[1] in text]


class GgufTokenizer:
    """Turns text into tokens, and describes the tokens, for a GGUF."""

    vocabulary: Vocabulary

    def __init__(self, path: Path) -> None:
        """Read the tokenizer of a GGUF. Raises ModelError for a bad file or an unknown kind."""
        stored = read_vocabulary(path)
        self._merging: BytePairs | ScoredPairs
        self._adds_space_prefix = False
        if stored.model == "gpt2":
            split = SPLITS.get(stored.pre)
            if split is None:
                raise _unsupported(stored, f"the pre-tokenizer {stored.pre!r}")
            if not stored.merges:
                raise ModelError(f"{path} has no merges, which its tokenizer needs.")
            self._merging = BytePairs(stored, split)
            roles = assign_roles(stored, bos=11, eos=11)
            bytes_of, adds_bos = bytes_of_characters, split.adds_bos
        elif stored.model == "llama":
            self._merging = ScoredPairs(stored)
            self._adds_space_prefix = stored.adds_space_prefix is not False
            roles = assign_roles(stored, bos=1, eos=2)
            bytes_of, adds_bos = bytes_without_marks, True
        else:
            raise _unsupported(stored, f"the tokenizer {stored.model!r}")
        self.vocabulary = describe(stored, roles, adds_bos=adds_bos, bytes_of=bytes_of)
        special = sorted(
            (
                (token, stored.tokens[token])
                for token, kind in enumerate(roles.kinds)
                if kind in (CONTROL, UNKNOWN, USER_DEFINED)
            ),
            key=lambda item: -len(item[1].encode()),
        )
        self._special = _NamedTokens(special)
        self._user_defined = _NamedTokens(
            [each for each in special if roles.kinds[each[0]] == USER_DEFINED]
        )
        self._stripping: frozenset[int] = frozenset()
        if any(name in stored.name.lower() for name in _STRIPPING):
            self._stripping = frozenset(
                token for token, name in special if name not in _NEVER_STRIPPING
            )

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text. With `special`, names of control tokens become those tokens."""
        checked_bytes(text)
        tokens: list[int] = []
        follows_text = False
        for part in self._parts(text, self._special if special else self._user_defined):
            if isinstance(part, int):
                tokens.append(part)
                follows_text = False
            else:
                prefix = " " if self._adds_space_prefix and not follows_text else ""
                tokens += self._merging.encode(prefix + part)
                follows_text = True
        return tokens

    def _parts(self, text: str, names: _NamedTokens) -> list[str | int]:
        """The text split at the names: special tokens, and the texts between them."""
        parts: list[str | int] = [text] if text else []
        for token, name in names.written_in(text):
            parts = [each for part in parts for each in self._cut(part, token, name)]
        return parts

    def _cut(self, part: str | int, token: int, name: str) -> list[str | int]:
        if isinstance(part, int):
            return [part]
        first, *others = part.split(name)
        found: list[str | int] = [first] if first else []
        for other in others:
            found.append(token)
            rest = other.lstrip(_WHITESPACE) if token in self._stripping else other
            found += [rest] if rest else []
        return found


def _unsupported(stored: GgufVocabulary, what: str) -> ModelError:
    return ModelError(
        f"{stored.path} has {what}, which jitney's own tokenizer does not support; "
        "the llamacpp backend can run it."
    )
