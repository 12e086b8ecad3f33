"""Tokens to text, as they come: `Detokenizer`, one per sequence.

Called from one thread at a time. It gives whole characters only (invariant 5): it keeps bytes that
may still become a character. All results joined equal the decoding of all bytes at once, with
U+FFFD in place of invalid bytes. It knows nothing about stop strings.
"""

import codecs
from collections.abc import Sequence

from jitney.core.backend import Vocabulary

_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence as its tokens arrive.

    A control token gives no text if `skip_special`, and its name otherwise. A token outside the
    vocabulary gives no text (rows of logits may be padded).
    """

    def __init__(self, vocabulary: Vocabulary, skip_special: bool) -> None:
        self._pieces = vocabulary.pieces
        self._skipped = vocabulary.control if skip_special else frozenset()
        self._decoder = _DECODER("replace")
        self._is_within = False
        """Whether the last piece ended within a character, or may have."""

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        return self.push_all((token,))

    def push_all(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        pieces, skipped, size = self._pieces, self._skipped, len(self._pieces)
        found = b"".join([pieces[each] for each in tokens if each < size and each not in skipped])
        if not self._is_within and found.isascii():
            return found.decode("ascii")  # so it is for most tokens, and the decoder is slow
        text = self._decoder.decode(found)
        self._is_within = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The text that was held back; call it after the last token."""
        return self._decoder.decode(b"", final=True)
