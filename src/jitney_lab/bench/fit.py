"""A line through the times of batches: T(B) = C + B c, and where more sequences stop helping."""

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

SATURATED = 1.1
"""A batch twice as large that is less than this much faster is not worth its latency."""


@dataclass(frozen=True, slots=True)
class LinearFit:
    """T(B) = fixed_s + B * sequence_s, with the mean relative error of the fit."""

    fixed_s: float
    sequence_s: float
    error: float

    def seconds(self, size: int) -> float:
        """The time of a batch of this size."""
        return self.fixed_s + size * self.sequence_s


def fit(seconds: Mapping[int, float]) -> LinearFit:
    """Least squares of relative errors through times by batch size; at least two sizes."""
    weights = {size: 1.0 / value**2 for size, value in seconds.items()}
    total = sum(weights.values())
    mean_x = sum(weights[size] * size for size in seconds) / total
    mean_y = sum(weights[size] * value for size, value in seconds.items()) / total
    spread = sum(weights[size] * (size - mean_x) ** 2 for size in seconds)
    slope = sum(
        weights[size] * (size - mean_x) * (value - mean_y) for size, value in seconds.items()
    )
    sequence_s = slope / spread
    fixed_s = mean_y - sequence_s * mean_x
    error = statistics.fmean(
        abs(fixed_s + size * sequence_s - value) / value for size, value in seconds.items()
    )
    return LinearFit(fixed_s, sequence_s, error)


def saturation(rates: Mapping[int, float]) -> int | None:
    """The smallest size after which doubling gains little; None if the rates still rise.

    Neighbouring sizes may be any step apart: the gain of a step is taken as that of so many
    doublings.
    """
    sizes = sorted(rates)
    for size, larger in itertools.pairwise(sizes):
        doublings = math.log2(larger / size)
        if (rates[larger] / rates[size]) ** (1 / doublings) < SATURATED:
            return size
    return None
