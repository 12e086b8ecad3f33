"""Learns the cost of a tick: seconds = a + b * decodes + c * prefill tokens.

a and b are a line through the ticks without prefill: least squares of relative errors, with
exponential forgetting. c is the time per prefill token above that line. One fit of all three does
not work: while every tick has the same prefill, it cannot separate the parts. If decodes have
become slower unseen, prefill seems too expensive, and spans stay small. If decodes have become
faster, spans grow step by step. Used by the `bounded-stall` mix and for the retry time of a full
queue, and shown to people as `Fit`.
"""

from dataclasses import dataclass

FORGET = 0.98
PREFILL_FORGET = 0.5
"""Smaller, so old ticks count less: a token costs more as its prompt becomes longer."""

TOKEN_S_MIN = 1e-7
"""Less is noise. Even the smallest model on the fastest machine takes longer."""

SPAN_UNKNOWN = 64
"""Prefill tokens beside decodes while their cost is unknown."""

SPAN_FULL_WEIGHT = 64
"""A tick with this many prefill tokens counts fully. One with fewer counts less. One with more does
not count more, because each token of a large span is cheaper."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The time of a tick with B decodes and no prefill: T(B) = fixed_s + B * sequence_s.

    `sequence_s` is None while all such ticks had one size; then `fixed_s` is the whole time.
    With noisy ticks one of the two may be a little below zero.
    """

    fixed_s: float
    sequence_s: float | None

    def seconds(self, decode_count: int) -> float:
        """The time of so many decodes."""
        return max(0.0, self.fixed_s + decode_count * (self.sequence_s or 0.0))


class CostModel:
    """Fits the cost of a tick to the observed ticks."""

    def __init__(self) -> None:
        # Sums of 1, x, x * x, y and x * y, each divided by y * y. x is the decodes and y the
        # seconds of a tick.
        self._sums = [0.0, 0.0, 0.0, 0.0, 0.0]
        self._prefill_count = 0.0
        self._prefill_s = 0.0
        self._span = 0
        self._span_alone = 0
        self._slope: float | None = None
        self.tokens_per_s = 0.0
        self.fit: Fit | None = None
        """The line of decodes; None before the first tick without prefill. While all ticks have one
        size, the last known slope stays."""
        self.prefill_token_s: float | None = None
        """Seconds for one more prefill token in a tick; None before the first."""

    def observe(self, decode_count: int, prefill_count: int, seconds: float) -> None:
        """A tick with so many tokens of each kind took so long."""
        assert decode_count >= 0 <= prefill_count, (decode_count, prefill_count)
        if seconds <= 0.0:
            return
        if prefill_count:
            portion = min(1.0, SPAN_FULL_WEIGHT / prefill_count)
            beyond_s = max(0.0, seconds - self.decodes_s(decode_count))
            self._prefill_count = PREFILL_FORGET * self._prefill_count + portion * prefill_count
            self._prefill_s = PREFILL_FORGET * self._prefill_s + portion * beyond_s
            self.prefill_token_s = max(TOKEN_S_MIN, self._prefill_s / self._prefill_count)
            if decode_count:
                self._span = prefill_count
            else:
                self._span_alone = prefill_count
        else:
            products = (1.0, decode_count, decode_count**2, seconds, decode_count * seconds)
            for index, product in enumerate(products):
                self._sums[index] = FORGET * self._sums[index] + product / seconds**2
            slope = self._slope_now()
            self._slope = self._slope if slope is None else slope
            weight, x, _, y, _ = self._sums
            self.fit = Fit((y - (self._slope or 0.0) * x) / weight, self._slope)
        rate = (decode_count + prefill_count) / seconds
        weight = 0.1 if self.tokens_per_s else 1.0
        self.tokens_per_s += weight * (rate - self.tokens_per_s)

    def prefill_within(self, seconds: float, decode_count: int) -> int:
        """Prefill tokens that fit beside the decodes in so much time."""
        assert decode_count >= 0, decode_count
        token_s = self.prefill_token_s
        if token_s is None:
            return SPAN_UNKNOWN
        assert token_s > 0.0, token_s
        fitting = max(0, int((seconds - self.decodes_s(decode_count)) / token_s))
        # At most double: if decodes became faster unseen, prefill seems free.
        span = self._span if decode_count else self._span_alone
        return min(fitting, max(SPAN_UNKNOWN, 2 * span))

    def decodes_s(self, decode_count: int) -> float:
        """The time of so many decodes without prefill; 0 before the first such tick."""
        weight, x, _, y, _ = self._sums
        if not weight:
            return 0.0
        # Around the mean: with one size known, the line is level.
        slope = self._slope_now() or 0.0
        return max(0.0, y / weight + slope * (decode_count - x / weight))

    def _slope_now(self) -> float | None:
        """Seconds for one more decode; None while all counted ticks have one size."""
        weight, x, x2, y, xy = self._sums
        mean_x, mean_y = x / weight, y / weight
        variance = x2 / weight - mean_x**2
        return (xy / weight - mean_x * mean_y) / variance if variance > 1e-6 else None
