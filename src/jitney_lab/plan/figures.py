"""What a simulated or measured run comes to, for tables and for choosing.

Tests: tests/unit/lab/plan/test_results.py.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitney_lab.bench.timing import RequestTimes, is_within, summary

Limits = Mapping[str, float]
"""The most milliseconds by metric: ttft, tpot, e2el. Empty: there is no limit."""

METRICS = {
    "per_s": ("request_throughput", "requests/s"),
    "tokens_per_s": ("output_throughput", "tokens/s"),
    "p50_ms": ("p50_e2el_ms", "p50 latency ms"),
    "p95_ms": ("p95_e2el_ms", "p95 latency ms"),
    "ttft_p50_ms": ("p50_ttft_ms", "p50 first token ms"),
    "ttft_p95_ms": ("p95_ttft_ms", "p95 first token ms"),
    "tpot_p95_ms": ("p95_tpot_ms", "p95 per token ms"),
}
"""Figures by name: the key in the summary of a run, and the title in tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Rates in requests and tokens per second, latencies in milliseconds.

    A latency that no request has is NaN: that of a second token, where answers have one.
    """

    count: int
    failed: int
    per_s: float
    tokens_per_s: float
    share: float
    """The part of all requests that ended within the limits."""
    p50_ms: float
    p95_ms: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p95_ms: float
    mean_batch: float
    failure: str | None = None
    """The most common reason of failures; None where none failed."""


def figures_of(
    requests: Sequence[RequestTimes], duration_s: float, limits: Limits, mean_batch: float
) -> Figures:
    """Sum up a run."""
    # Where every request is refused at once, no time goes by, and no rate is above 0.
    found = summary(requests, duration_s or math.inf, percentiles=(50.0, 95.0))
    known = {name: found[key] for name, (key, _) in METRICS.items()}
    values = {name: float(str(math.nan if each is None else each)) for name, each in known.items()}
    errors = Counter(each.error for each in requests if each.error is not None)
    within = sum(each.error is None and is_within(each, limits) for each in requests)
    return Figures(
        count=len(requests),
        failed=errors.total(),
        share=within / max(1, len(requests)),
        mean_batch=mean_batch,
        failure=max(errors, key=lambda each: errors[each], default=None),
        **{
            name: math.nan if value is None else float(str(value)) for name, value in values.items()
        },
    )
