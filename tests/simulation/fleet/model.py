"""The model of a simulated fleet: a token depends on (seed, position) alone.

So every answer is known before it is asked for. About one token in 32 is the end token.
"""

from jitney.core.batch import Sample
from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.engine.answer import Delta

VALUES = 512
EOS = 0
_END_VALUES = 16
_COMPLETIONS_MAX = 2
_GOLDEN = 0x9E3779B97F4A7C15

SAMPLES = tuple(Sample(token=value if value >= _END_VALUES else EOS) for value in range(VALUES))
"""What the backend returns, by value. Made once: there are millions."""

DELTAS = tuple(
    tuple(Delta(index=index, text=chr(0x4E00 + token), tokens=(token,)) for token in range(VALUES))
    for index in range(_COMPLETIONS_MAX)
)
"""What a caller is told of a token, by completion and token."""


def value_at(seed: int, position: int) -> int:
    """The value from which the token at this position is made."""
    return ((seed ^ position * 0x9E3779B1) * 0x85EBCA6B >> 20) & (VALUES - 1)


def answer_of(request: Request, index: int) -> tuple[tuple[int, ...], FinishReason]:
    """The whole completion that a request must get, and why it ends."""
    seed = (request.seed + index * _GOLDEN + 2**63) % 2**64 - 2**63
    first, count = len(request.prompt), request.params.max_tokens
    assert count is not None, "every request has a limit here"
    tokens: list[int] = []
    for position in range(first, first + count):
        token = SAMPLES[value_at(seed, position)].token
        assert token is not None
        if token == EOS and not request.params.ignore_eos:
            return tuple(tokens), FinishReason.STOP
        tokens.append(token)
    return tuple(tokens), FinishReason.LENGTH


def text_of(tokens: tuple[int, ...]) -> str:
    """The text of these tokens: one character for each."""
    return "".join([DELTAS[0][token].text for token in tokens])
