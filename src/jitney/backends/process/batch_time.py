"""`BatchTimeLimits`: how long a batch may take before the backend counts as stuck.

It learns from batches that ended. Called on the thread that runs batches; it has no clock. The cost
model of the scheduler (`jitney.core.rules.cost`) cannot serve here: it forgets the cost of prefill
while there is none, and a wrong limit would end a process. So this keeps an average time for each
size: batches of 1 token, of 2 and 3, of 4 to 7, and so on.
"""

from dataclasses import dataclass

from jitney.core import limits

SEEN_MIN = 3
"""How many batches of a size must be measured: the first may be slow for other reasons."""

WEIGHT = 0.2
"""The weight of the latest batch in the average of its size."""


@dataclass(slots=True)
class _SizeTimes:
    """Batches of one size: how many were measured, and their average time."""

    count: int = 0
    seconds: float = 0.0


class BatchTimeLimits:
    """The limits of one backend's batches."""

    def __init__(self, ceiling_s: float = limits.BATCH_S_MAX) -> None:
        self._ceiling_s = ceiling_s
        self._sizes: dict[int, _SizeTimes] = {}
        self._is_fresh = True

    def limit_s(self, token_count: int) -> float:
        """How long to wait for a batch of this many tokens."""
        first_s = min(limits.BATCH_FIRST_S, self._ceiling_s)
        ceiling_s = min(first_s + limits.BATCH_TOKEN_S * token_count, self._ceiling_s)
        own_s = self._measured_s(token_count.bit_length())
        expected_s = self._extrapolated_s(token_count) if own_s is None else own_s
        if expected_s is None:
            return ceiling_s
        floor_s = first_s if self._is_fresh else min(limits.BATCH_S_MIN, self._ceiling_s)
        limit_s = max(min(limits.BATCH_FACTOR * expected_s, ceiling_s), floor_s)
        return limit_s if own_s is None else max(limit_s, limits.BATCH_FACTOR_MIN * own_s)

    def observe(self, token_count: int, seconds: float) -> None:
        """Note how long a batch of this many tokens took."""
        self._is_fresh = False
        size = self._sizes.setdefault(token_count.bit_length(), _SizeTimes())
        size.count += 1
        size.seconds += max(1 / size.count, WEIGHT) * (seconds - size.seconds)

    def restart(self) -> None:
        """Note that there is a new process. Its first batch may be slow."""
        self._is_fresh = True

    def _measured_s(self, bits: int) -> float | None:
        size = self._sizes.get(bits)
        return size.seconds if size is not None and size.count >= SEEN_MIN else None

    def _extrapolated_s(self, token_count: int) -> float | None:
        """An estimate from the nearest smaller size. It is too high: many tokens at once take less
        time than the same tokens alone."""
        for bits in range(token_count.bit_length() - 1, 0, -1):
            measured_s = self._measured_s(bits)
            if measured_s is not None:
                return measured_s * token_count / (1 << (bits - 1))
        return None
