"""Drives a backend by hand, one batch at a time, and compares what came back.

`observe` feeds a fixed list of tokens and asks for a sample after each, so that two runs stand on
the same tokens even where a backend rounds differently. `assert_alike` then wants equality from a
backend that is exact, and from any other that logprobs differ by at most `TOLERANCE`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from jitney.core.backend import Backend
from jitney.core.batch import (
    Batch,
    Entry,
    MemoryOperation,
    Open,
    Outcome,
    Sample,
    Sampling,
    TokenLogprob,
)

TOLERANCE = 5e-2
"""Greatest difference of one logprob between two batch shapes, on backends that are not exact.

Measured with llama.cpp on the tiny model: 0.017 at most over this suite, against 0.2 and more when
one token of the context is another. Kernels differ by machine, so the bound is three times that.
"""

TOP = 20
TOP_SHARED_MIN = 15
"""Of the best tokens: near ties may swap at the edge of the list, and no more than that."""


def greedy(prompt_count: int, *, logprobs: int | None = TOP) -> Sampling:
    """The best token each time, with the best ones told."""
    return Sampling(seed=0, prompt_count=prompt_count, logprobs=logprobs)


@dataclass
class Driver:
    """Sends batches and numbers them."""

    backend: Backend
    number: int = field(default=0)

    def run(
        self, entries: Iterable[Entry] = (), operations: Iterable[MemoryOperation] = ()
    ) -> Outcome:
        """One batch."""
        self.number += 1
        outcome = self.backend.execute(Batch(self.number, tuple(operations), tuple(entries)))
        assert outcome.number == self.number
        return outcome

    def feed(
        self, slot: int, start: int, tokens: tuple[int, ...], *, wants_token: bool = True
    ) -> Sample:
        """One entry alone."""
        (sample,) = self.run([Entry(slot, start, tokens, wants_token)]).samples
        return sample

    def observe(
        self, slot: int, tokens: tuple[int, ...], start: int, *, stored: int = 0, span: int = 64
    ) -> list[Sample]:
        """Samples after each of `tokens` from `start` on.

        The slot holds the first `stored` tokens already; those up to `start` go in in spans.
        """
        samples = []
        for position in range(stored, start, span):
            end = min(position + span, start)
            sample = self.feed(slot, position, tokens[position:end], wants_token=end == start)
        if stored < start:
            samples.append(sample)
        for position in range(max(stored, start), len(tokens)):
            samples.append(self.feed(slot, position, (tokens[position],)))
        return samples

    def complete(
        self, slot: int, prompt: tuple[int, ...], sampling: Sampling, count: int
    ) -> list[int]:
        """Generate up to `count` tokens in an empty slot; an end token is the last."""
        self.run(operations=[Open(slot, sampling)])
        tokens = list(prompt)
        sample = self.feed(slot, 0, prompt)
        while True:
            assert sample.token is not None, sample.fault
            tokens.append(sample.token)
            if (
                len(tokens) - len(prompt) == count
                or sample.token in self.backend.vocabulary.eos_tokens
            ):
                return tokens[len(prompt) :]
            sample = self.feed(slot, len(tokens) - 1, (tokens[-1],))

    def text(self, tokens: Iterable[int]) -> str:
        """The text of tokens that are not control tokens."""
        vocabulary = self.backend.vocabulary
        shown = [token for token in tokens if token not in vocabulary.control]
        return b"".join(vocabulary.pieces[token] for token in shown).decode()

    def assert_alike(self, found: list[Sample], expected: list[Sample]) -> None:
        """Equal where the backend is exact, else within the tolerance."""
        assert len(found) == len(expected)
        assert found, "nothing to compare"
        if self.backend.traits.batch_invariant:
            assert found == expected
            return
        for one, other in zip(found, expected, strict=True):
            assert one.logprob is not None
            assert other.logprob is not None
            difference = top_difference(one.logprob, other.logprob)
            assert difference <= TOLERANCE, f"logprobs differ by {difference}"


def top_difference(one: TokenLogprob, other: TokenLogprob) -> float:
    """The greatest difference of a logprob in both lists; infinite when the lists differ."""
    left, right = dict(one.top), dict(other.top)
    shared = left.keys() & right.keys()
    if len(shared) < min(TOP_SHARED_MIN, len(left)):
        return math.inf
    return max(abs(left[token] - right[token]) for token in shared)
