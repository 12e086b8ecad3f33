"""The same request run alone: what every completion must be, whatever happened around it.

Tokens come from the fake backend's oracle, text from decoding all bytes at once and cutting at the
first stop string: no code of the engine or the core has a part in it.
"""

import codecs
from dataclasses import dataclass

from jitney.backends.fake.backend import FakeSettings
from jitney.core.events import FinishReason
from jitney.core.params import SamplingParams
from jitney.core.request import Request
from jitney.tokenizers.byte_tokenizer import byte_vocabulary
from tests.expected_completion import expected_completion
from tests.simulation.seen import Name

PIECES = byte_vocabulary().pieces
CONTROL = byte_vocabulary().control
_SEED_STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Cut:
    """A text cut at its first stop string.

    `token_count` tokens show the match, which begins in the one at `starts_in`. It is `late` when
    it shows only in what half a character turns into at the end.
    """

    text: str
    token_count: int
    matched: str | None = None
    starts_in: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True)
class Alone:
    """What one completion is when nothing else runs."""

    sampled: tuple[int, ...]
    """Tokens that the backend gives before it ends by itself; stop strings are not looked at."""
    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    stop_reasons: tuple[str | int | None, ...]
    """The oracle does not say which of several end tokens it was."""
    completion_count: int
    """Tokens sampled, an end token included."""


def cut(tokens: tuple[int, ...], params: SamplingParams) -> Cut:
    """Decode all of it at once, search the whole of it: slow, plain, and right."""
    skipped = CONTROL if params.skip_special_tokens else frozenset()
    pieces = [b"" if token in skipped else PIECES[token] for token in tokens]
    text = b"".join(pieces).decode("utf-8", errors="replace")
    found = [
        (text.index(stop) + len(stop), text.index(stop), stop)
        for stop in params.stop_strings
        if stop in text
    ]
    if not found:
        return Cut(text, len(tokens))
    end, start, matched = min(found)
    kept = text[:end] if params.include_stop_str_in_output else text[:start]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    length = 0
    starts_in = 0
    for index, piece in enumerate(pieces):
        if length <= start:
            starts_in = index
        length += len(decoder.decode(piece))
        if length >= end:
            return Cut(kept, index + 1, matched, starts_in)
    return Cut(kept, len(tokens), matched, starts_in, late=True)


class Oracle:
    """Knows what every request of one world must become."""

    def __init__(self, fake: FakeSettings, model_len_max: int) -> None:
        self._fake = fake
        self._model_len_max = model_len_max
        self._requests: dict[str, Request] = {}
        self._known: dict[Name, Alone] = {}

    def add(self, request: Request) -> None:
        """Learn of a request."""
        self._requests[request.id] = request

    def request(self, name: Name) -> Request:
        """The request of a sequence."""
        return self._requests[name[0]]

    def alone(self, name: Name) -> Alone:
        """What this completion is when nothing else runs."""
        if name not in self._known:
            self._known[name] = self._compute(self.request(name), name[1])
        return self._known[name]

    def _compute(self, request: Request, index: int) -> Alone:
        params = request.params
        tokens_max = self._model_len_max - len(request.prompt)
        if params.max_tokens is not None:
            tokens_max = min(tokens_max, params.max_tokens)
        # Each completion draws for itself; the first one draws as the request alone would.
        seed = (request.seed + index * _SEED_STRIDE + 2**63) % 2**64 - 2**63
        sampled = sample_alone(request, seed, self._fake, tokens_max)
        is_full = len(sampled) == tokens_max
        found = cut(sampled, params)
        count = len(sampled) + (not is_full)
        if found.matched is not None:
            kept = sampled[: found.token_count]
            count = count if found.late else len(kept)
            return Alone(sampled, kept, found.text, FinishReason.STOP, (found.matched,), count)
        if is_full:
            return Alone(sampled, sampled, found.text, FinishReason.LENGTH, (None,), count)
        stops = (None, *(params.stop_token_ids or ()))
        return Alone(sampled, sampled, found.text, FinishReason.STOP, stops, count)


def sample_alone(
    request: Request, seed: int, fake: FakeSettings, tokens_max: int
) -> tuple[int, ...]:
    """Tokens until the backend ends by itself, or there are `tokens_max`."""
    return tuple(
        expected_completion(
            request.prompt,
            request.params,
            seed,
            eos_period=fake.eos_period,
            tokens_max=tokens_max,
            rounds=fake.rounds,
        )
    )
