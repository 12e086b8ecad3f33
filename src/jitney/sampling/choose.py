"""The choice of one token from one row, as fast as it can be.

Pure functions, called from the backend's thread. There is no full sort and little float64: one
float32 pass over the row bounds the mass, and float64 serves the few tokens that matter. If
rounding in float32 could change the choice, the row is computed again in float64.

Tests: tests/property/test_sampling.py.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitney.core.batch import Sampling

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

_BLOCK = 128
# The relative error of a float32 weight per unit of its exponent (three roundings), and the other
# errors: exp and the sums over blocks. Both bounds are about three times the measured errors.
_ERROR_PER_EXPONENT = 2e-7
_ERROR = 2e-6


@dataclass(frozen=True, slots=True)
class _Mass:
    """The weight of every token relative to the best, the sum, and the sum's possible error."""

    weights: NDArray[np.float32] | NDArray[np.float64]
    blocks: NDArray[np.float64]
    total: float
    error: float


def choose_token(row: Floats, sampling: Sampling, drawn: float) -> int:
    """Steps 8 and 9 of `jitney.sampling.sampler`. At least one of the adjusted logits is finite."""
    best = float(row.max())
    if 0 < sampling.top_k < len(row):
        ids = best_ids(row, sampling.top_k)
        if sampling.top_p < 1.0:
            weights = _weights(row, ids, best, sampling.temperature)
            ids = _cut(row, ids, best, sampling, float(weights.sum()))
        return _draw(row, ids, best, sampling, drawn)
    if sampling.top_p < 1.0:
        ids = _top_p(row, best, sampling)
        return _draw(row, ids, best, sampling, drawn)
    if sampling.min_p > 0.0:
        # A little lower than the true edge: `_draw` drops the tokens below it.
        edge = best + sampling.temperature * math.log(sampling.min_p) - 1e-3 - 1e-6 * abs(best)
        return _draw(row, np.flatnonzero(row >= np.float32(edge)), best, sampling, drawn)
    for dtype in (np.float32, np.float64):
        token = _draw_from_all(_mass(row, best, sampling.temperature, dtype), drawn)
        if token is not None:
            return token
    raise AssertionError("With float64 there is always a choice.")


def best_ids(row: Floats, count: int) -> Ids:
    """The ids of the `count` best tokens, sorted by id; among equals, lower ids win."""
    count = min(count, len(row))
    whole = len(row) // _BLOCK
    if count <= whole // 2:
        # Take the `count` best blocks, and the lowest of their maxima. At least `count` tokens
        # reach that maximum, and few others do. Blocks are columns here, because numpy computes
        # the maxima of columns several times faster.
        maxima = row[: whole * _BLOCK].reshape(_BLOCK, whole).max(axis=0)
        edge = np.partition(maxima, whole - count)[whole - count]
        found = np.flatnonzero(row >= edge)
    else:
        found = np.arange(len(row))
    if len(found) == count:
        return found
    values = row[found]
    edge = np.partition(values, len(values) - count)[len(values) - count]
    return _above(found, values, edge, count)


def _above(ids: Ids, values: Floats, edge: np.float32, count: int) -> Ids:
    """The `count` best of `ids`, where `edge` is the value of the last of these."""
    better = values > edge
    missing = count - int(np.count_nonzero(better))
    better[np.flatnonzero(values == edge)[:missing]] = True
    return ids[better]


def _mass(row: Floats, best: float, temperature: float, dtype: type[np.floating]) -> _Mass:
    with np.errstate(over="ignore", under="ignore"):
        if dtype is np.float32:
            weights = row - np.float32(best)
            weights *= np.float32(1.0 / temperature)
        else:
            weights = (row.astype(np.float64) - best) / temperature
        np.exp(weights, out=weights)
    whole = len(row) // _BLOCK * _BLOCK
    blocks = np.empty(len(row) // _BLOCK + 1)
    blocks[:-1] = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    blocks[-1] = weights[whole:].sum()
    total = float(blocks.sum())
    if dtype is not np.float32:
        return _Mass(weights, blocks, total, 0.0)
    # The mean exponent is the entropy less log(total), and the entropy at most log(len(row)).
    exponent_mean = math.log(len(row) / total)
    return _Mass(weights, blocks, total, total * (_ERROR_PER_EXPONENT * exponent_mean + _ERROR))


def _draw_from_all(mass: _Mass, drawn: float) -> int | None:
    """The token at `drawn`; None if `drawn` is too near a border to decide."""
    target = drawn * mass.total
    borders = np.cumsum(mass.blocks)
    block = min(int(np.searchsorted(borders, target, side="right")), len(borders) - 1)
    start = float(borders[block - 1]) if block else 0.0
    weights = mass.weights[block * _BLOCK : (block + 1) * _BLOCK]
    if not len(weights):
        return None if mass.error else int(np.flatnonzero(mass.weights)[-1])
    inner = start + np.cumsum(weights, dtype=np.float64)
    place = min(int(np.searchsorted(inner, target, side="right")), len(weights) - 1)
    lower = float(inner[place - 1]) if place else start
    if mass.error and not lower + mass.error <= target < float(inner[place]) - mass.error:
        return None
    return block * _BLOCK + place


def _top_p(row: Floats, best: float, sampling: Sampling) -> Ids:
    """The ids that top_p keeps of the whole row, sorted."""
    for dtype in (np.float32, np.float64):
        mass = _mass(row, best, sampling.temperature, dtype)
        # With the edge at (1 - top_p) of the mass divided by the number of tokens, all tokens
        # below the edge together have at most 1 - top_p of the mass. A much higher guess is
        # almost always right, and leaves much less to sort.
        share = (1.0 - sampling.top_p) * (mass.total - mass.error)
        for count in (512, 2 * len(row)):
            edge = best + sampling.temperature * math.log(max(share / count, 1e-300))
            found = np.flatnonzero(row >= np.float32(edge))
            weights = _weights(row, found, best, sampling.temperature)
            if float(weights.sum()) < sampling.top_p * mass.total + mass.error:
                continue
            if not mass.error or not _is_near_edge(weights, sampling.top_p * mass.total, mass):
                return _cut(row, found, best, sampling, mass.total)
            break
    return np.arange(len(row))


def _is_near_edge(weights: NDArray[np.float64], target: float, mass: _Mass) -> bool:
    """Whether the error of the total could move the edge of top_p by a token."""
    sums = np.cumsum(np.sort(weights)[::-1])
    low, high = np.searchsorted(sums, (target - mass.error, target + mass.error), side="left")
    return bool(low != high)


def _cut(row: Floats, ids: Ids, best: float, sampling: Sampling, total: float) -> Ids:
    """The best of `ids` whose mass just reaches top_p of `total`, sorted by id."""
    values = row[ids]
    ranked = np.sort(values)[::-1]
    sums = np.cumsum(np.exp((ranked.astype(np.float64) - best) / sampling.temperature))
    last = min(int(np.searchsorted(sums, sampling.top_p * total, side="left")), len(ids) - 1)
    return _above(ids, values, ranked[last], last + 1)


def _weights(row: Floats, ids: Ids, best: float, temperature: float) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp((row[ids].astype(np.float64) - best) / temperature)
    return weights


def _draw(row: Floats, ids: Ids, best: float, sampling: Sampling, drawn: float) -> int:
    """Apply min_p to `ids`, and return the id at `drawn`."""
    weights = _weights(row, ids, best, sampling.temperature)
    if sampling.min_p > 0.0:
        likely = weights >= sampling.min_p
        ids, weights = ids[likely], weights[likely]
    borders = np.cumsum(weights)
    place = int(np.searchsorted(borders, drawn * float(borders[-1]), side="right"))
    return int(ids[min(place, len(ids) - 1)])
