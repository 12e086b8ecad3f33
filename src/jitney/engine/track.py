"""`Track`: the tokens of one completion, whose text is made when somebody needs it.

The engine thread appends to `tokens` and sets `end`; one reader calls `take`, on any thread. There
is no lock: each attribute has one writer, and a list shows its new items whole. So a token costs
the engine an append, and the text of all tokens that gathered meanwhile is made at once, on the
thread of who reads it. At the end the engine thread makes the whole text once, for the answer: 10
ms for 32,768 tokens. Stop strings and logprobs need each token's text or rank on the engine
thread; such completions do without `take`.

Tests: tests/unit/engine/test_track.py.
"""

from collections.abc import Sequence

from jitney.core.backend import Vocabulary
from jitney.core.events import FinishReason
from jitney.engine.answer import Completion, Delta
from jitney.text.detokenizer import Detokenizer

TAKEN_MAX = 4096
"""Tokens of one delta. The text of so many takes about a millisecond; a reader who was away longer
takes the rest next, and others have their turn in between."""


class Track:
    """One completion, as far as it is made and read. It begins with tokens from elsewhere if there
    are any; their text was sent there, as far as it goes out with them."""

    __slots__ = (
        "_detokenizer",
        "_given_count",
        "_is_over",
        "_seen_count",
        "_skips_special",
        "_vocabulary",
        "completion",
        "end",
        "first_token_at",
        "index",
        "resumed_count",
        "started_at",
        "tokens",
        "unread_since",
    )

    def __init__(
        self, index: int, resumed: Sequence[int], vocabulary: Vocabulary, skips_special: bool
    ) -> None:
        self.index = index
        self.tokens = list(resumed)
        """All that were made; the engine thread appends."""
        self.end: tuple[FinishReason, str | int | None] | None = None
        """Why it ended, and the stop that ended it; set after the last token."""
        self.resumed_count = len(resumed)
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.unread_since = 0.0
        """When the oldest unread token was made."""
        self.completion: Completion | None = None
        self._vocabulary = vocabulary
        self._skips_special = skips_special
        # The reader's:
        self._detokenizer = Detokenizer(vocabulary, skips_special)
        self._detokenizer.push_all(resumed)
        self._seen_count = self._given_count = len(resumed)
        self._is_over = False

    @property
    def unread_count(self) -> int:
        """Tokens that the reader has not looked at."""
        return len(self.tokens) - self._seen_count

    @property
    def has_news(self) -> bool:
        """Whether there is something to look at: perhaps a part of a character, which is no text
        yet."""
        return self._seen_count < len(self.tokens) or (self.end is not None and not self._is_over)

    def add(self, token: int, at: float) -> None:
        """One more token. Engine thread."""
        tokens = self.tokens
        if self._seen_count == len(tokens):
            self.unread_since = at
        tokens.append(token)

    def take(self) -> Delta | None:
        """What is new, as one delta; None if it makes no text yet. Reader only."""
        end, seen_count = self.end, self._seen_count  # the end first: no token comes after it
        new = self.tokens[seen_count : seen_count + TAKEN_MAX]
        text = self._detokenizer.push_all(new)
        self._seen_count = seen_count = seen_count + len(new)
        if end is not None and not self._is_over and seen_count == len(self.tokens):
            self._is_over = True
            text += self._detokenizer.flush()
        elif text:
            end = None
        else:
            return None
        if seen_count - self._given_count > len(new):
            new = self.tokens[self._given_count : seen_count]
        self._given_count = seen_count
        reason, stop_reason = end or (None, None)
        return Delta(self.index, text, tuple(new), (), reason, stop_reason)

    def text(self) -> str:
        """All of its text, if nothing follows."""
        detokenizer = Detokenizer(self._vocabulary, self._skips_special)
        return detokenizer.push_all(self.tokens) + detokenizer.flush()

    def tail(self, characters_max: int) -> str:
        """The last characters so far, without one that is not whole."""
        token_count = 4 * characters_max + 8  # almost every token has a byte, and a character four
        detokenizer = Detokenizer(self._vocabulary, self._skips_special)
        text = detokenizer.push_all(self.tokens[-token_count:])
        return text[-characters_max:] if characters_max else ""
