"""Chooses the tokens of one slot from rows of logits: `SlotSampler`.

Backends call it from the thread that runs batches. A `SlotSampler` keeps only data that it can
rebuild from the tokens of its slot, so it may be thrown away at any time. A row that cannot be
sampled gives a fault for that row only. Tests compare it with a slow sampler in plain numpy
(`tests/reference_sampler.py`). The logits of one row go through these steps, in this order:

 1. A row that holds NaN or plus infinity is a fault. Minus infinity is an impossible token.
 2. `logit_bias` is added.
 3. `min_tokens`: while the completion is shorter, the `end_tokens` are impossible.
 4. The constraint's mask: tokens that it does not allow are impossible.
 5. `repetition_penalty`, for every token in the prompt or the completion: a positive logit is
    divided by it, any other is multiplied. Then, for every token in the completion,
    `frequency_penalty` times its count is subtracted, and `presence_penalty` once. Steps 2 to 5
    use float32, later steps float64.
 6. If no token is left, that is a fault.
 7. A temperature below TEMPERATURE_MIN is greedy: the best token, the lowest id among equals.
 8. Otherwise logits are divided by the temperature, and tokens are kept by
    `top_k`  the k best, lower ids first among equals (0 and -1: all);
    `top_p`  of those, the best ones whose mass just reaches top_p of their total, at least one;
    `min_p`  of those, the ones at least min_p times as likely as the best.
 9. The kept tokens, in the order of their ids, divide [0, 1) in proportion to their
    probabilities, and the number drawn from (seed, position) selects one of them. The order is by
    id, not by rank: rounding noise may swap the ranks of two almost equal tokens, and with ranks
    they would swap places. With ids, noise moves each border only as much as the mass below it.

Reported logprobs are those of the model itself: log-softmax of the raw logits, before the steps
above. Impossible tokens are reported at LOGPROB_MIN.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jitney.core.batch import Fault, FaultKind, Sample, Sampling
from jitney.errors import CapacityError, RequestError
from jitney.sampling.choose import choose_token
from jitney.sampling.draw import uniform
from jitney.sampling.logprobs import token_logprob

Floats = NDArray[np.float32]

TEMPERATURE_MIN = 1e-5
"""Below this the best token has all the mass, within the precision of a float."""

FAULT_NOT_A_NUMBER = Fault("The model produced logits that are not numbers at this position.")
FAULT_NOTHING_LEFT = Fault(
    "No token is left to choose: bias, constraint and model exclude them all."
)


class TokenMatcher(Protocol):
    """Applies a constraint to one completion, as `jitney.sampling.constraint.Matcher` does."""

    def advance_to(self, completion_tokens: Sequence[int]) -> None:
        """Read the new tokens of the completion. Raises InvalidRequest if it cannot go on."""

    def mask(self) -> NDArray[np.bool_]:
        """True for each token that may follow. Raises InvalidRequest if it cannot go on."""


def fault_of(error: RequestError | CapacityError) -> Fault:
    """The fault of a slot whose constraint cannot be used. Other slots of the batch go on."""
    kind = FaultKind.REQUEST if isinstance(error, RequestError) else FaultKind.CAPACITY
    return Fault(str(error), kind)


class _TokenCounts:
    """The number of times each token was added, as arrays of ids and of counts."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.intp)
        self._counts = np.zeros(64, dtype=np.float32)

    def add(self, tokens: Sequence[int]) -> None:
        for token, count in Counter(tokens).items():
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token
            self._counts[place] += count

    @property
    def ids(self) -> NDArray[np.intp]:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Floats:
        return self._counts[: len(self._places)]


class SlotSampler:
    """Chooses the tokens of one slot, and keeps its token counts between ticks."""

    def __init__(self, sampling: Sampling, matcher: TokenMatcher | None = None) -> None:
        self._sampling = sampling
        self._matcher = matcher
        self._is_greedy = sampling.temperature < TEMPERATURE_MIN
        self._repeats = sampling.repetition_penalty != 1.0
        self._counts = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        self._adjusts = bool(
            sampling.logit_bias
            or (sampling.min_tokens and sampling.end_tokens)
            or matcher is not None
            or self._repeats
            or self._counts
        )
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.intp)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        self._end_ids = np.array(sampling.end_tokens, dtype=np.intp)
        self._seen = _TokenCounts()
        self._completion = _TokenCounts()
        self._counted = 0

    @property
    def sampling(self) -> Sampling:
        """The parameters of the slot."""
        return self._sampling

    def sample(self, tokens: Sequence[int], row: Floats, best: int | None = None) -> Sample:
        """Choose the token after `tokens`, all tokens of the slot so far. `row` is not changed.

        `best` is the column of its largest logit, if the caller knows it.
        """
        # argmax finds a NaN or an infinity if there is one, so no other check is needed.
        best = int(row.argmax()) if best is None else best
        token = best
        adjusted = row
        if self._adjusts and math.isfinite(row[best]):
            try:
                adjusted = self._adjusted(tokens, row)
            except RequestError as error:
                return Sample(fault=fault_of(error))
            token = int(adjusted.argmax())
        if not math.isfinite(adjusted[token]):
            impossible = adjusted[token] == -math.inf
            return Sample(fault=FAULT_NOTHING_LEFT if impossible else FAULT_NOT_A_NUMBER)
        if not self._is_greedy:
            drawn = uniform(self._sampling.seed, len(tokens))
            token = choose_token(adjusted, self._sampling, drawn)
        if self._sampling.logprobs is None:
            return Sample(token=token)
        return Sample(token=token, logprob=token_logprob(row, token, self._sampling.logprobs))

    def _adjusted(self, tokens: Sequence[int], row: Floats) -> Floats:
        """Steps 2 to 5, on a copy."""
        sampling = self._sampling
        row = row.copy()
        if sampling.logit_bias:
            inside = self._bias_ids < len(row)
            row[self._bias_ids[inside]] += self._bias[inside]
        if len(tokens) - sampling.prompt_count < sampling.min_tokens:
            row[self._end_ids[self._end_ids < len(row)]] = -np.inf
        if self._matcher is not None:
            self._matcher.advance_to(tokens[sampling.prompt_count :])
            mask = self._matcher.mask()[: len(row)]
            row[len(mask) :] = -np.inf
            np.copyto(row[: len(mask)], np.float32(-np.inf), where=~mask)
        if self._repeats or self._counts:
            self._count(tokens)
            with np.errstate(over="ignore"):
                self._penalise(row)
        return row

    def _penalise(self, row: Floats) -> None:
        sampling = self._sampling
        if self._repeats:
            repetition = np.float32(sampling.repetition_penalty)
            ids = self._seen.ids
            ids = ids[ids < len(row)]
            logits = row[ids]
            row[ids] = np.where(logits > 0, logits / repetition, logits * repetition)
        if self._counts:
            ids = self._completion.ids
            inside = ids < len(row)
            logits = row[ids[inside]]
            logits -= np.float32(sampling.frequency_penalty) * self._completion.counts[inside]
            logits -= np.float32(sampling.presence_penalty)
            row[ids[inside]] = logits

    def _count(self, tokens: Sequence[int]) -> None:
        """Count the new tokens. If some tokens were taken back, count all of them again."""
        if len(tokens) < self._counted:
            self._seen, self._completion, self._counted = _TokenCounts(), _TokenCounts(), 0
        if self._repeats:
            self._seen.add(tokens[self._counted :])
        if self._counts:
            self._completion.add(tokens[max(self._counted, self._sampling.prompt_count) :])
        self._counted = len(tokens)
