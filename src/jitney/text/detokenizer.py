"""Tokens to text, a token at a time: `Detokenizer`, one per sequence.

Called from the engine thread. Gives whole characters only (invariant 5): bytes that may still
become a character are held back. What all calls give, joined, is what decoding all bytes at once
gives, U+FFFD in place of invalid bytes included. Knows nothing of stop strings.
"""

import codecs

from jitney.core.backend import Vocabulary

_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence as its tokens come in.

    Control tokens give nothing when `skip_special`, and their name as text otherwise. A token
    that the vocabulary does not list (rows of logits may be padded) gives nothing.
    """

    def __init__(self, vocabulary: Vocabulary, skip_special: bool) -> None:
        self._pieces = vocabulary.pieces
        self._skipped = vocabulary.control if skip_special else frozenset()
        self._decoder = _DECODER("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        if token in self._skipped or token >= len(self._pieces):
            return ""
        return self._decoder.decode(self._pieces[token])

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        return self._decoder.decode(b"", final=True)
