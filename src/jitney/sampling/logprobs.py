"""Logprobs of chosen tokens and of prompt tokens, from raw logits.

Pure functions, called from the backend's thread. They take one row at a time, so a long prompt
needs no more memory than a short one.

Tests: tests/unit/sampling/test_sampler.py.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jitney.core.batch import LOGPROB_MIN, TokenLogprob
from jitney.sampling.choose import best_ids


def token_logprob(row: NDArray[np.float32], token: int, count: int) -> TokenLogprob:
    """The logprob of a token, and the `count` best tokens: best first, lower ids among equals.

    A row with a NaN or an infinity says nothing: the result is LOGPROB_MIN without best tokens.
    """
    best = float(row.max())
    if not math.isfinite(best):
        return TokenLogprob(token, LOGPROB_MIN)
    with np.errstate(over="ignore", under="ignore"):
        weights = row - np.float32(best)
        total = best + math.log(float(np.exp(weights, out=weights).sum()))
    top: tuple[tuple[int, float], ...] = ()
    if count:
        ids = best_ids(row, count)
        ids = ids[np.argsort(-row[ids], kind="stable")]
        top = tuple((int(other), _bounded(float(row[other]) - total)) for other in ids)
    return TokenLogprob(token, _bounded(float(row[token]) - total), top)


def prompt_logprobs(
    logits: NDArray[np.float32], next_tokens: Sequence[int], count: int
) -> tuple[TokenLogprob, ...]:
    """For each row of logits, the logprob of the prompt token after it."""
    assert len(logits) == len(next_tokens), f"{len(logits)} rows for {len(next_tokens)} tokens."
    return tuple(
        token_logprob(row, token, count) for row, token in zip(logits, next_tokens, strict=True)
    )


def _bounded(logprob: float) -> float:
    # Rounding can give a token with all the mass a logprob slightly above 0.
    return min(max(logprob, LOGPROB_MIN), 0.0)
