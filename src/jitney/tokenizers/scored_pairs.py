"""Merging by score ("llama" in a GGUF): characters are joined pair by pair, best score first.

Pure Python, any thread. Among equal scores the leftmost pair goes first, which the library's
merging by rank cannot do. A part that is not a token in the end becomes the tokens of its bytes.

Tests: tests/unit/tokenizers/test_tokenizer.py.
"""

from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise

from jitney.errors import ModelError
from jitney.models.gguf_vocabulary import GgufVocabulary
from jitney.models.token_names import SPACE_MARK, byte_name

WORDS_CACHED_MAX = 16_384
WORD_CACHED_CHARACTERS_MAX = 64


class ScoredPairs:
    """Turns the characters of a text into tokens."""

    def __init__(self, stored: GgufVocabulary) -> None:
        self._ids = {token: at for at, token in enumerate(stored.tokens)}
        scores = stored.scores or (0.0,) * len(stored.tokens)
        # A heap gives the smallest first, and that should be the best.
        self._ranks = {
            token: -score
            for token, score in zip(stored.tokens, scores, strict=True)
            if len(token) > 1
        }
        self._bytes = [self._byte_token(stored, byte) for byte in range(256)]
        # Pairs of neighbouring characters in any token. Between other pairs no merge can happen,
        # so a text can be split there, and each word merged and cached separately.
        self._joined = {left + right for token in self._ranks for left, right in pairwise(token)}
        self._cached_merge = lru_cache(maxsize=WORDS_CACHED_MAX)(self._merge)

    def _byte_token(self, stored: GgufVocabulary, byte: int) -> int:
        token = self._ids.get(byte_name(byte))
        if token is None and byte < 128:
            token = self._ids.get(chr(byte))
        if token is None:
            raise ModelError(
                f"{stored.path} has no token for the byte 0x{byte:02X}, which its tokenizer needs; "
                "convert the model again."
            )
        return token

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special tokens."""
        text = text.replace(" ", SPACE_MARK)
        joined = self._joined
        cuts = [at for at in range(1, len(text)) if text[at - 1 : at + 1] not in joined]
        words = (text[start:end] for start, end in pairwise((0, *cuts, len(text))))
        return list(
            chain.from_iterable(
                self._cached_merge(word)
                if len(word) <= WORD_CACHED_CHARACTERS_MAX
                else self._merge(word)
                for word in words
            )
        )

    def _merge(self, word: str) -> tuple[int, ...]:
        """The tokens of a word. The start of a part is its key; its `ends` is 0 once merged."""
        ranks = self._ranks
        count = len(word)
        ends = list(range(1, count + 1))
        starts_before = list(range(-1, count - 1))
        heap = [
            (rank, start, start + 1, start + 2)
            for start in range(count - 1)
            if (rank := ranks.get(word[start : start + 2])) is not None
        ]
        heapify(heap)
        while heap:
            _, left, right, end = heappop(heap)
            # One of the two has already been joined to another part.
            if ends[left] != right or ends[right] != end:
                continue
            ends[left], ends[right] = end, 0
            before = starts_before[left]
            if end < count:
                starts_before[end] = left
                after = ends[end]
                if (rank := ranks.get(word[left:after])) is not None:
                    heappush(heap, (rank, left, end, after))
            if before >= 0 and (rank := ranks.get(word[before:end])) is not None:
                heappush(heap, (rank, before, left, end))
        tokens: list[int] = []
        start = 0
        while start < count:
            token = self._ids.get(part := word[start : ends[start]])
            tokens += self._bytes_of(part) if token is None else (token,)
            start = ends[start]
        return tuple(tokens)

    def _bytes_of(self, part: str) -> list[int]:
        return [self._bytes[byte] for byte in part.encode()]
