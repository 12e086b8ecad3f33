"""Histograms of ticks and requests. Added to under the recorder's lock, copied for readers."""

from bisect import bisect_left
from copy import copy

from jitney.records import RequestDone, RequestFailed, RequestStarted, TickRecord
from jitney.server.observe.story import Story

FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TICK_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
COMPLETIONS = (1, 2, 5, 10, 20)
TICK_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The bounds of vLLM's histograms; only TICK_S is our own."""


def token_bounds(tokens_max: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 and so on, up to the longest possible sequence."""
    bounds: list[int] = []
    power = 1
    while power <= tokens_max:
        bounds += [power * digit for digit in (1, 2, 5) if power * digit <= tokens_max]
        power *= 10
    return tuple(bounds)


class Histogram:
    """How many values lie up to each bound (the bound included), and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copied(self) -> "Histogram":
        """A copy as it is now."""
        other = Histogram(self.bounds)
        other.counts[:], other.total = self.counts, self.total
        return other


class Histograms:
    """The histograms of ticks and requests; times in seconds.

    Times of background requests are left out: nobody waits for them, and some wait for hours.
    """

    def __init__(self, model_len_max: int) -> None:
        lengths = token_bounds(model_len_max)
        self.first_token = Histogram(FIRST_TOKEN_S)
        self.token_gap = Histogram(TOKEN_GAP_S)
        self.token_mean = Histogram(TOKEN_GAP_S)
        self.whole = Histogram(LATENCY_S)
        self.queued = Histogram(LATENCY_S)
        self.inferred = Histogram(LATENCY_S)
        self.prefilled = Histogram(LATENCY_S)
        self.generated = Histogram(LATENCY_S)
        self.tick = Histogram(TICK_S)
        self.forward = Histogram(TICK_S)
        self.tick_tokens = Histogram(TICK_TOKENS)
        self.completions = Histogram(COMPLETIONS)
        self.prompt_length = Histogram(lengths)
        self.prompt_computed = Histogram(lengths)
        self.completion_length = Histogram(lengths)
        self.completion_longest = Histogram(lengths)
        self.max_tokens = Histogram(lengths)
        self.prefill_s = 0.0
        self.generation_s = 0.0
        """From the first slot to the first token, and from that to the last: of all requests."""
        self.tokens_longest = 0
        """The longest sequence seen, in tokens."""

    def copied(self) -> "Histograms":
        """A copy as it is now. Called under the recorder's lock, so it is cheap."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Histogram):
                setattr(other, name, value.copied())
        return other

    def add_tick(self, record: TickRecord) -> None:
        """A tick ended."""
        self.tick.add(record.tick_ms / 1e3)
        self.forward.add(record.forward_ms / 1e3)
        self.tick_tokens.add(record.prefill_tokens + record.decode_tokens)
        for member in record.members:
            end = member.start + member.length
            if end > self.tokens_longest:
                self.tokens_longest = end

    def add_started(self, record: RequestStarted, *, is_live: bool) -> None:
        """A request got its first slot. Background requests have no latencies here."""
        if is_live:
            self.queued.add(record.waited_ms / 1e3)
        self.prompt_length.add(record.prompt_tokens)
        self.prompt_computed.add(record.prompt_tokens - record.prefix_cache_tokens)

    def add_ended(self, record: RequestDone | RequestFailed, story: Story | None) -> None:
        """A request ended. It has no story if it came before the recorder."""
        is_live = story is None or not story.accepted.is_background
        if is_live:
            self.whole.add(record.duration_ms / 1e3)
        self.completion_length.add(record.generated_tokens)
        if story is None:
            return
        self.completions.add(story.accepted.completions)
        if story.accepted.max_tokens is not None:
            self.max_tokens.add(story.accepted.max_tokens)
        # Of completions that were made elsewhere only the sum is known.
        mean = record.generated_tokens // story.accepted.completions
        longest = max((each.token_count for each in story.progress.values()), default=mean)
        self.completion_longest.add(longest)
        started, first_at, last_at = story.started, story.first_token_at, story.last_token_at
        if started is None or first_at is None or last_at is None:
            return
        self.prefill_s += first_at - started.at
        self.generation_s += last_at - first_at
        if not is_live:
            return
        self.prefilled.add(first_at - started.at)
        self.generated.add(last_at - first_at)
        self.inferred.add(last_at - started.at)
        if longest > 1:
            self.token_mean.add((last_at - first_at) / (longest - 1))
