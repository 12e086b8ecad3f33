"""The exact meaning of every sampling parameter, in plain numpy, one row at a time.

It is slow and never serves. The samplers are compared with it: `jitney.sampling.sampler`, whose
docstring names the steps, and those of backends.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jitney.core.batch import LOGPROB_MIN, Sample, Sampling, TokenLogprob
from jitney.sampling.draw import uniform
from jitney.sampling.sampler import FAULT_NOT_A_NUMBER, FAULT_NOTHING_LEFT, TEMPERATURE_MIN


def sample(
    logits: NDArray[np.float32],
    sampling: Sampling,
    tokens: Sequence[int],
    mask: NDArray[np.bool_] | None = None,
) -> Sample:
    """Choose the token after `tokens`, which are the prompt and the completion so far."""
    if np.isnan(logits).any() or np.isposinf(logits).any():
        return Sample(fault=FAULT_NOT_A_NUMBER)
    row = adjust(logits, sampling, tokens, mask)
    if np.isposinf(row).any():
        return Sample(fault=FAULT_NOT_A_NUMBER)
    if np.isneginf(row).all():
        return Sample(fault=FAULT_NOTHING_LEFT)
    token = choose(row, sampling, uniform(sampling.seed, len(tokens)))
    if sampling.logprobs is None:
        return Sample(token=token)
    return Sample(token=token, logprob=logprob(logits, token, sampling.logprobs))


def adjust(
    logits: NDArray[np.float32],
    sampling: Sampling,
    tokens: Sequence[int],
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Steps 2 to 5. Token ids beyond the row are ignored; a mask may be shorter than the row."""
    row = logits.astype(np.float32, copy=True)
    completion = tokens[sampling.prompt_count :]
    for token, bias in sampling.logit_bias:
        if token < len(row):
            row[token] += np.float32(bias)
    if len(completion) < sampling.min_tokens:
        for token in sampling.end_tokens:
            if token < len(row):
                row[token] = -np.inf
    if mask is not None:
        for token in range(len(row)):
            if token >= len(mask) or not mask[token]:
                row[token] = -np.inf
    with np.errstate(over="ignore"):
        _penalise(row, sampling, tokens, completion)
    return row


def _penalise(
    row: NDArray[np.float32], sampling: Sampling, tokens: Sequence[int], completion: Sequence[int]
) -> None:
    repetition = np.float32(sampling.repetition_penalty)
    for token in set(tokens):
        if token < len(row):
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
    for token, count in Counter(completion).items():
        if token < len(row):
            row[token] -= np.float32(sampling.frequency_penalty) * np.float32(count)
            row[token] -= np.float32(sampling.presence_penalty)


def choose(row: NDArray[np.float32], sampling: Sampling, drawn: float) -> int:
    """Steps 7 to 9. At least one of the adjusted logits is finite."""
    if sampling.temperature < TEMPERATURE_MIN:
        return int(np.argmax(row))
    scaled = (row.astype(np.float64) - float(row.max())) / sampling.temperature
    weights = np.exp(scaled)
    ranked = np.argsort(-row, kind="stable")
    if sampling.top_k > 0:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1.0:
        mass = np.cumsum(weights[ranked])
        ranked = ranked[: 1 + int(np.searchsorted(mass, sampling.top_p * mass[-1], side="left"))]
    kept = np.sort(ranked[weights[ranked] >= sampling.min_p])
    borders = np.cumsum(weights[kept])
    place = int(np.searchsorted(borders, drawn * borders[-1], side="right"))
    return int(kept[min(place, len(kept) - 1)])


def logprob(logits: NDArray[np.float32], token: int, count: int) -> TokenLogprob:
    """The logprob of a token, and the `count` best tokens: best first, lower ids among equals."""
    row = logits.astype(np.float64)
    best = float(row.max())
    total = best + math.log(float(np.exp(row - best).sum()))
    ranked = np.argsort(-row, kind="stable")[:count]
    top = tuple((int(other), max(float(row[other]) - total, LOGPROB_MIN)) for other in ranked)
    return TokenLogprob(token, max(float(row[token]) - total, LOGPROB_MIN), top)
