"""What a simulated or measured run comes to, for tables and for choosing.

Tests: tests/unit/lab/plan/test_recommend.py and test_what_if.py.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitney_lab.bench.timing import RequestTimes, is_within, summary

Limits = Mapping[str, float]
"""The most milliseconds by metric: ttft, tpot, e2el. Empty: there is no limit."""


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
    """What most of the requests that failed were told; None where none failed."""


def figures_of(
    requests: Sequence[RequestTimes], duration_s: float, limits: Limits, mean_batch: float
) -> Figures:
    """Sum up a run."""
    # Where every request is refused at once, no time goes by, and no rate is above 0.
    found = summary(requests, duration_s or math.inf, percentiles=(50.0, 95.0))
    errors = Counter(each.error for each in requests if each.error is not None)
    within = sum(each.error is None and is_within(each, limits) for each in requests)

    def number(key: str) -> float:
        value = found[key]
        return math.nan if value is None else float(str(value))

    return Figures(
        count=len(requests),
        failed=errors.total(),
        per_s=number("request_throughput"),
        tokens_per_s=number("output_throughput"),
        share=within / max(1, len(requests)),
        p50_ms=number("p50_e2el_ms"),
        p95_ms=number("p95_e2el_ms"),
        ttft_p50_ms=number("p50_ttft_ms"),
        ttft_p95_ms=number("p95_ttft_ms"),
        tpot_p95_ms=number("p95_tpot_ms"),
        mean_batch=mean_batch,
        failure=max(errors, key=lambda each: errors[each], default=None),
    )
