"""Merging by rank ("gpt2" in a GGUF): the bytes of a word are joined pair by pair, best rank first.

Owns the native tokenizer; any thread may call it. It gives the same tokens as llama.cpp, which
looks up a merged word only at the end. So a merge may make a name that is not a token.

Tests: tests/conformance/test_tokenizer.py.
"""

from collections.abc import Iterator, Mapping

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence
from tokenizers.pre_tokenizers import Split as SplitByExpression

from jitney.errors import ModelError
from jitney.models.gguf_vocabulary import GgufVocabulary
from jitney.models.token_names import byte_characters
from jitney.tokenizers.splits import Split

WINDOW_CHARACTERS = 8_192
"""About 2,000 tokens, or six milliseconds, in which no other thread of Python runs."""

WORDS_REPEATED = 4


class BytePairs:
    """Turns the words of a text into tokens."""

    def __init__(
        self, stored: GgufVocabulary, split: Split, *, window: int = WINDOW_CHARACTERS
    ) -> None:
        self._window = window
        self._tokens_of_missing: dict[int, tuple[int, ...]] = {}
        ids = {token: at for at, token in enumerate(stored.tokens)}
        merges = dict.fromkeys(_merges(stored.merges))
        self._add_missing(ids, merges)
        if split.ignores_merges and any(
            len(token) > 1 for token in list(ids)[len(stored.tokens) :]
        ):
            raise ModelError(
                f"{stored.path} has merges without a token, which its pre-tokenizer "
                f"{stored.pre!r} does not allow; try the llamacpp backend."
            )
        model = BPE(vocab=ids, merges=list(merges), ignore_merges=split.ignores_merges)
        self._tokenizer = Tokenizer(model)
        self._tokenizer.pre_tokenizer = Sequence(
            [
                *(SplitByExpression(Regex(each), "isolated") for each in split.expressions),
                ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def _add_missing(self, ids: dict[str, int], merges: dict[tuple[str, str], None]) -> None:
        """Add ids above the vocabulary for names that merging needs and the file lacks.

        Also store the tokens that replace them. llama.cpp replaces such a name by the tokens of
        its UTF-8 bytes. It finds only ASCII bytes; the others disappear.
        """
        count = len(ids)
        for left, right in merges:
            for name in (left, right, left + right):
                ids.setdefault(name, len(ids))
        for name in byte_characters():
            ids.setdefault(name, len(ids))
        for name, token in list(ids.items())[count:]:
            found = (ids.get(each, count) for each in name if each.isascii())
            self._tokens_of_missing[token] = tuple(each for each in found if each < count)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special tokens."""
        tokens = encode_in_windows(self._tokenizer, text, self._window, WORDS_REPEATED)
        return with_replacements(tokens, self._tokens_of_missing)


def with_replacements(tokens: list[int], replacements: Mapping[int, tuple[int, ...]]) -> list[int]:
    """The tokens, with replacements for those that have one."""
    if replacements.keys().isdisjoint(tokens):
        return tokens
    return [each for token in tokens for each in replacements.get(token, (token,))]


def encode_in_windows(
    tokenizer: Tokenizer, text: str, window: int, words_repeated: int
) -> list[int]:
    """The tokens, encoded in windows of the text: the library takes 500 bytes for each word.

    The last words of a window may be split differently than in the whole text, so the next window
    starts with them again. A window does not end in whitespace, because its split depends on the
    text after it. A window with too few words grows.
    """
    tokens: list[int] = []
    start, size = 0, window
    while True:
        end = min(len(text), start + size)
        while end < len(text) and text[end - 1].isspace():
            end += 1
        encoding = tokenizer.encode(text[start:end], add_special_tokens=False)
        if end == len(text):
            return tokens + encoding.ids
        last = encoding.token_to_word(len(encoding.ids) - 1) if encoding.ids else None
        again = (last or 0) - words_repeated
        # A word may have no tokens if the vocabulary does not have all bytes.
        while again > 0 and encoding.word_to_tokens(again) is None:
            again -= 1
        if again <= 0:
            size *= 2
            continue
        token_range, place = encoding.word_to_tokens(again), encoding.word_to_chars(again)
        assert token_range is not None, f"Word {again} has no token."
        assert place is not None, f"Word {again} has no place in the text."
        tokens += encoding.ids[: token_range[0]]
        start += place[0]
        size = window


def _merges(lines: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The pairs in order of rank, without lines that are not a pair."""
    for line in lines:
        left, space, right = line.partition(" ")
        if left and space and right and " " not in right:
            yield left, right
