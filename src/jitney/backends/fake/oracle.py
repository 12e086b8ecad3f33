"""The hash oracle: computes the fake backend's next token from the tokens alone.

The next token is a hash of all tokens before it, so a wrong slot, a gap, an old token or a missed
release changes it. Tests compute the same tokens for one request alone
(`tests/expected_completion.py`). Pure; any thread.

Tests: tests/unit/backends/fake/test_backend.py.
"""

from collections.abc import Callable
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt

from jitney.core.backend import Vocabulary
from jitney.core.batch import Sampling
from jitney.tokenizers import byte_tokenizer

Logits = npt.NDArray[np.float32]

HASH_OF_NOTHING = 0x6A09E667F3BCC908
ROUNDED_ALONE = 1 << 32
ROUNDED_ROW = 1 << 33
"""What simulated kernels add to a token that was computed alone, and for each row outside of a
group."""
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STIR = 0xBF58476D1CE4E5B9
_CHOICE_SALT = (0x243F6A88 * _GOLDEN) & _MASK

_WORD_CHOICES = 896
"""Beside them, each ASCII byte and each byte of a longer character is one choice."""

_BEST_MARGIN = 2.0
"""How far the chosen token's logit stands above the second best."""


def mix64(rolling: int, token: int) -> int:
    """The hash of a sequence that is one token longer than the one hashed to `rolling`."""
    mixed = ((rolling ^ (token * _GOLDEN)) * _STIR) & _MASK
    return mixed ^ (mixed >> 31)


def seeded(rolling: int, seed: int, position: int) -> int:
    """The hash that decides the token where it is drawn at random."""
    return mix64(mix64(rolling, seed), position)


def encode_plain(text: str) -> list[int]:
    """Tokens of a text in which nothing is special."""
    return byte_tokenizer.encode(text, special=False)


def is_plain(sampling: Sampling) -> bool:
    """Whether the oracle chooses the token directly, so that no logits are needed."""
    return sampling == Sampling(
        seed=sampling.seed,
        prompt_count=sampling.prompt_count,
        temperature=sampling.temperature,
        end_tokens=sampling.end_tokens,
    )


class TokenOracle:
    """Maps the hash of a sequence to the token after it, and to logits that agree with it."""

    def __init__(self, vocabulary: Vocabulary, eos_period: int) -> None:
        assert eos_period >= 0, f"eos_period {eos_period}"
        self._eos_period = eos_period
        self._eos = vocabulary.eos_tokens[0]
        self._size = len(vocabulary.pieces)
        high = _plain_tokens(vocabulary, lambda piece: len(piece) == 1 and piece[0] >= 0x80)
        self._table = _choice_table(vocabulary, high)
        self._continuations = [token for token in high if vocabulary.pieces[token][0] < 0xC0]
        self._high = frozenset(high)

    def choose(self, rolling: int, token_before: int) -> int:
        """The token after a sequence with this hash that ends in `token_before`.

        After a byte of a longer character, half of the choices are bytes that can continue it. So
        some such characters are complete and others are broken.
        """
        # `mix64` of the salt.
        mixed = ((rolling ^ _CHOICE_SALT) * _STIR) & _MASK
        drawn = mixed ^ (mixed >> 31)
        if self._eos_period and drawn % self._eos_period == 0:
            return self._eos
        drawn >>= 13
        if token_before in self._high and drawn & 1:
            return self._continuations[(drawn >> 1) % len(self._continuations)]
        return self._table[(drawn >> 1) % len(self._table)]

    def logits(self, rolling: int, token_before: int) -> Logits:
        """Logits after a sequence with this hash; the best token is that of `choose`."""
        generator = np.random.Generator(np.random.PCG64(rolling))
        logits = generator.standard_normal(self._size, dtype=np.float32)
        logits[self.choose(rolling, token_before)] = logits.max() + np.float32(_BEST_MARGIN)
        return logits


def _choice_table(vocabulary: Vocabulary, high_bytes: list[int]) -> list[int]:
    """Mostly words, and every other plain token once."""
    words = _plain_tokens(vocabulary, lambda piece: len(piece) > 1)
    ascii_bytes = _plain_tokens(vocabulary, lambda piece: len(piece) == 1 and 32 <= piece[0] < 127)
    assert all((words, ascii_bytes, high_bytes)), "The byte vocabulary has all three kinds"
    return [*islice(cycle(words), _WORD_CHOICES), *ascii_bytes, *high_bytes]


def _plain_tokens(vocabulary: Vocabulary, accepts: Callable[[bytes], bool]) -> list[int]:
    """The tokens that are text, and whose bytes are accepted."""
    hidden = vocabulary.control.union(vocabulary.eos_tokens)
    pieces = enumerate(vocabulary.pieces)
    return [token for token, piece in pieces if token not in hidden and accepts(piece)]
