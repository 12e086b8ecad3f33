"""What metrics are made of: totals and histograms, added up from the engine's records.

`take` is called on the engine thread for every record, so it only adds integers; `copied` may be
called on any thread and gives totals that belong together. Nothing here knows how metrics are
named or written: that is `jitney.server.observe.metrics`.

Truth: `completion_tokens` counts every token that some sequence took, so after a run it equals
the sum of what `usage` told the callers, and so does `prompt_tokens` for requests that ran.
"""

import threading
from bisect import bisect_left
from copy import deepcopy
from dataclasses import dataclass, field
from typing import assert_never

from jitney.core.events import PreemptReason
from jitney.core.request import RequestId
from jitney.engine.records import (
    BackendLost,
    KvPressure,
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestPreempted,
    RequestRefused,
    RequestStarted,
    TickRecord,
)
from jitney.errors import DeadlineExceeded

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
"""The bounds of vLLM's histograms, but for the last, which it has no counterpart of."""


def token_bounds(tokens_max: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 and so on up to the longest sequence there can be."""
    bounds: list[int] = []
    power = 1
    while power <= tokens_max:
        bounds += [power * digit for digit in (1, 2, 5) if power * digit <= tokens_max]
        power *= 10
    return tuple(bounds)


class Histogram:
    """Counts of values up to each bound, the bound included, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self.counts)


@dataclass(slots=True)
class Totals:
    """Everything that only grows."""

    model_len_max: int
    accepted: int = 0
    ended: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "deadline", "error"), 0)
    )
    """Requests by how they ended."""
    refused: dict[str, int] = field(default_factory=dict)
    """Requests turned away by the engine, by the name of the error."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    preempted: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(map(str, PreemptReason), 0)
    )
    evicted: int = 0
    backend_losses: int = 0
    ticks: int = 0
    entries: int = 0
    tokens_longest: int = 0
    prefill_s: float = 0.0
    generation_s: float = 0.0
    http: dict[tuple[str, str], int] = field(default_factory=dict)
    """Answers over HTTP, by route and status."""
    http_refused: dict[str, int] = field(default_factory=dict)
    """Of those, refusals by why."""
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    token_gap: Histogram = field(default_factory=lambda: Histogram(TOKEN_GAP_S))
    token_mean: Histogram = field(default_factory=lambda: Histogram(TOKEN_GAP_S))
    whole: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    queued: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    inferred: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    prefilled: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    generated: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    tick: Histogram = field(default_factory=lambda: Histogram(TICK_S))
    forward: Histogram = field(default_factory=lambda: Histogram(TICK_S))
    tick_tokens: Histogram = field(default_factory=lambda: Histogram(TICK_TOKENS))
    completions: Histogram = field(default_factory=lambda: Histogram(COMPLETIONS))
    prompt_length: Histogram = field(init=False)
    completion_length: Histogram = field(init=False)
    completion_longest: Histogram = field(init=False)

    @property
    def preempted_count(self) -> int:
        """Those who lost their place to others; a pause is its caller's own wish."""
        return sum(self.preempted.values()) - self.preempted[PreemptReason.PAUSED]

    max_tokens: Histogram = field(init=False)
    prompt_computed: Histogram = field(init=False)

    def __post_init__(self) -> None:
        bounds = token_bounds(self.model_len_max)
        self.prompt_length = Histogram(bounds)
        self.completion_length = Histogram(bounds)
        self.completion_longest = Histogram(bounds)
        self.max_tokens = Histogram(bounds)
        self.prompt_computed = Histogram(bounds)


@dataclass(slots=True)
class _Live:
    """What is to be known of a request until it ends."""

    arrived_at: float
    completions: int
    max_tokens: int | None
    started_at: float | None = None
    first_at: float | None = None
    last_at: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


class Measures:
    """Adds records up. One writer for records, any number for `answered` and `copied`."""

    def __init__(self, model_len_max: int) -> None:
        self._lock = threading.Lock()
        self._totals = Totals(model_len_max)
        self._live: dict[RequestId, _Live] = {}

    def take(self, record: Record) -> None:
        """Engine thread: count one record."""
        with self._lock:
            match record:
                case TickRecord():
                    self._take_tick(record)
                case RequestAccepted() | RequestRefused() | RequestStarted():
                    self._take_beginning(record)
                case RequestDone() | RequestFailed():
                    self._take_end(record)
                case RequestPreempted():
                    self._totals.preempted[record.reason.value] += 1
                case KvPressure():
                    self._totals.evicted += record.evicted_count
                case BackendLost():
                    self._totals.backend_losses += 1
                case _:
                    assert_never(record)

    def answered(self, route: str, status: int, refused: str | None = None) -> None:
        """An HTTP answer went out, which says why if it is a refusal.

        `route` is a pattern such as /v1/models, never a raw path, and `refused` a word of ours.
        """
        with self._lock:
            counts, refusals = self._totals.http, self._totals.http_refused
            counts[route, str(status)] = counts.get((route, str(status)), 0) + 1
            if refused is not None:
                refusals[refused] = refusals.get(refused, 0) + 1

    def copied(self) -> Totals:
        """All totals at one moment."""
        with self._lock:
            return deepcopy(self._totals)

    def _take_tick(self, record: TickRecord) -> None:
        totals = self._totals
        totals.ticks += 1
        totals.entries += record.batch_size
        totals.prefill_tokens += record.prefill_tokens
        totals.decode_tokens += record.decode_tokens
        totals.tick.add(record.tick_ms / 1e3)
        totals.forward.add(record.forward_ms / 1e3)
        totals.tick_tokens.add(record.prefill_tokens + record.decode_tokens)
        for member in record.members:
            end = member.start + member.length
            if end > totals.tokens_longest:
                totals.tokens_longest = end
            if member.samples:
                totals.completion_tokens += 1
                # Unknown when it was accepted before anyone observed.
                live = self._live.get(member.request_id)
                if live is not None:
                    self._take_token(live, member.index, record.at)

    def _take_token(self, live: _Live, index: int, at: float) -> None:
        last_at = live.last_at.get(index)
        if last_at is not None:
            self._totals.token_gap.add(at - last_at)
        elif live.first_at is None:
            live.first_at = at
            self._totals.first_token.add(at - live.arrived_at)
        live.last_at[index] = at
        live.counts[index] = live.counts.get(index, 0) + 1

    def _take_beginning(self, record: RequestAccepted | RequestRefused | RequestStarted) -> None:
        totals = self._totals
        match record:
            case RequestAccepted():
                totals.accepted += 1
                self._live[record.request_id] = _Live(
                    record.arrived_at, record.completions, record.max_tokens
                )
            case RequestRefused():
                name = type(record.error).__name__
                totals.refused[name] = totals.refused.get(name, 0) + 1
            case RequestStarted():
                totals.prompt_tokens += record.prompt_tokens
                totals.cached_tokens += record.prefix_cache_tokens
                totals.queued.add(record.waited_ms / 1e3)
                totals.prompt_length.add(record.prompt_tokens)
                totals.prompt_computed.add(record.prompt_tokens - record.prefix_cache_tokens)
                live = self._live.get(record.request_id)
                if live is not None:
                    live.started_at = record.at

    def _take_end(self, record: RequestDone | RequestFailed) -> None:
        totals = self._totals
        live = self._live.pop(record.request_id, None)
        totals.whole.add(record.duration_ms / 1e3)
        totals.completion_length.add(record.generated_tokens)
        if isinstance(record, RequestDone):
            reason = "abort" if record.was_cancelled else record.stop_reason
        else:
            reason = "deadline" if isinstance(record.error, DeadlineExceeded) else "error"
        totals.ended[reason] = totals.ended.get(reason, 0) + 1
        if live is not None:
            self._take_phases(live)

    def _take_phases(self, live: _Live) -> None:
        totals = self._totals
        totals.completions.add(live.completions)
        if live.max_tokens is not None:
            totals.max_tokens.add(live.max_tokens)
        totals.completion_longest.add(max(live.counts.values(), default=0))
        if live.started_at is None or live.first_at is None:
            return
        last_at = max(live.last_at.values())
        totals.prefilled.add(live.first_at - live.started_at)
        totals.generated.add(last_at - live.first_at)
        totals.inferred.add(last_at - live.started_at)
        totals.prefill_s += live.first_at - live.started_at
        totals.generation_s += last_at - live.first_at
        longest = max(live.counts.values())
        if longest > 1:
            totals.token_mean.add((last_at - live.first_at) / (longest - 1))
