"""The sampler that backends call: faults stay in their row, state is rebuilt from tokens."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from jitney.core.batch import LOGPROB_MIN, Fault, FaultKind, Sample, Sampling
from jitney.errors import InvalidRequest
from jitney.sampling.logprobs import prompt_logprobs, token_logprob
from jitney.sampling.sampler import SlotSampler
from tests import reference_sampler as reference

GREEDY = Sampling(seed=1, prompt_count=1)


class EvenTokens:
    """A real matcher of a very small language: even ids; four of them are one too many."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._consumed = 0

    def advance_to(self, completion_tokens: Sequence[int]) -> None:
        self._consumed = len(completion_tokens)
        if self._consumed > 3:
            raise InvalidRequest("too long", "structured_outputs")

    def mask(self) -> NDArray[np.bool_]:
        return np.array([token % 2 == 0 for token in range(self._size)], dtype=np.bool_)


def logits_of(*rows: Sequence[float]) -> NDArray[np.float32]:
    return np.array(rows, dtype=np.float32)


def test_a_bad_row_is_a_fault_of_that_row_only() -> None:
    """Guards invariant 10: one poisoned sequence must not take the batch with it."""
    logits = logits_of([1, 2, 3], [math.nan, 1, 2], [math.inf, 0, 0], [-math.inf] * 3, [5, 1, 1])
    samples = [SlotSampler(GREEDY).sample([0], row) for row in logits]
    assert [sample.token for sample in samples] == [2, None, None, None, 0]
    assert [sample.fault is None for sample in samples] == [True, False, False, False, True]


def test_logits_are_left_as_they_were() -> None:
    """Guards the backend's memory: adjusting in place would change what others read."""
    logits = logits_of([1, 2, 3])
    before = logits.copy()
    sampling = replace(
        GREEDY, temperature=0.7, repetition_penalty=1.5, logit_bias=((0, 5.0),), logprobs=2
    )
    SlotSampler(sampling).sample([2, 2], logits[0])
    assert np.array_equal(logits, before)


def test_a_mask_shorter_than_the_row_excludes_the_rest() -> None:
    """Guards models whose rows are padded beyond their vocabulary."""
    sampler = SlotSampler(GREEDY, EvenTokens(4))
    assert sampler.sample([0], logits_of([0, 5, 1, 5, 9, 9])[0]).token == 2


def test_a_constraint_that_fails_is_a_fault_with_its_sentence() -> None:
    """Guards the engine thread: a matcher's error is an answer, not an exception."""
    sampler = SlotSampler(GREEDY, EvenTokens(4))
    assert sampler.sample([0] * 5, logits_of([0, 5, 1, 5])[0]) == Sample(
        fault=Fault("too long", FaultKind.REQUEST)
    )


def test_penalties_follow_the_tokens_when_some_are_taken_back() -> None:
    """Guards the incremental counts: after a truncation they are counted afresh."""
    sampling = Sampling(
        seed=3, prompt_count=2, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.2
    )
    sampler = SlotSampler(sampling)
    rng = np.random.default_rng(0)
    tokens = [int(token) for token in rng.integers(0, 200, 300)]
    for length in (2, 3, 150, 300, 40, 41, 90, 2):
        row = rng.normal(size=200).astype(np.float32)
        expected = reference.sample(row, sampling, tokens[:length])
        assert sampler.sample(tokens[:length], row) == expected


def test_an_overflow_in_a_penalty_is_a_fault() -> None:
    """Guards arithmetic: a logit near the largest float must not become a choice of infinity."""
    sampling = Sampling(seed=3, prompt_count=1, repetition_penalty=0.1)
    assert SlotSampler(sampling).sample([0], logits_of([3e38, 1])[0]).fault is not None


def test_prompt_logprobs_equal_the_reference_row_by_row() -> None:
    """Guards the order and the arithmetic of prompt logprobs."""
    logits = np.random.default_rng(1).normal(scale=4, size=(7, 1000)).astype(np.float32)
    tokens = [5, 0, 999, 3, 3, 17, 400]
    found = prompt_logprobs(logits, tokens, 4)
    for logprob, row, token in zip(found, logits, tokens, strict=True):
        expected = reference.logprob(row, token, 4)
        assert logprob.token == token
        assert logprob.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [other for other, _ in logprob.top] == [other for other, _ in expected.top]


def test_logprobs_are_always_numbers_that_json_can_carry() -> None:
    """Guards impossible tokens and broken rows: minus infinity and NaN have no JSON."""
    row = logits_of([0, -math.inf, 1])[0]
    assert token_logprob(row, 1, 3).logprob == LOGPROB_MIN
    assert token_logprob(row, 1, 3).top[-1] == (1, LOGPROB_MIN)
    assert token_logprob(logits_of([0, math.nan])[0], 0, 1).logprob == LOGPROB_MIN
    assert token_logprob(logits_of([1000, 0])[0], 0, 0).logprob <= 0.0
