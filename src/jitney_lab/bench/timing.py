"""What one request took, and what all of them took together, under the names of `vllm bench serve`.

Times are seconds on one clock. Results are in milliseconds where the names say so.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jitney.errors import ConfigError

PERCENTILES = (50.0, 95.0, 99.0)

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Time to first token; time per token after it; gaps between tokens (between chunks of text, over
HTTP); end-to-end latency."""

GOODPUT_METRICS = ("ttft", "tpot", "e2el")
"""Those with one value for each request."""


@dataclass(slots=True, kw_only=True)
class RequestTimes:
    """One request as its caller saw it."""

    sent_at: float
    prompt_count: int = 0
    completion_count: int = 0
    token_times: list[float] = field(default_factory=list)
    """When tokens came. From an engine there is one time for each token; over HTTP there is one for
    each chunk with text, which may hold several tokens."""
    started_at: float | None = None
    """When it got its first slot; None where that is not known, as over HTTP."""
    ended_at: float = 0.0
    error: str | None = None
    is_sent: bool = True
    """False if the caller itself could not send it, as without room for another connection."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None without one."""
        return self.token_times[0] - self.sent_at if self.token_times else None

    @property
    def e2el_s(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended_at - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None for answers of one token."""
        if self.ttft_s is None or self.completion_count < 2:
            return None
        return (self.e2el_s - self.ttft_s) / (self.completion_count - 1)

    @property
    def itl_s(self) -> list[float]:
        """Gaps between neighbouring tokens, or chunks over HTTP."""
        return [later - earlier for earlier, later in itertools.pairwise(self.token_times)]


def summary(
    requests: Sequence[RequestTimes],
    duration_s: float,
    *,
    goodput: Mapping[str, float] | None = None,
) -> dict[str, object]:
    """Counts, rates and latencies of a run.

    `goodput` has limits in milliseconds by metric; requests within all of them are counted. The
    names are always the same: whether an answer came in one chunk must not change them.
    """
    good = [each for each in requests if each.error is None]
    output_count = sum(each.completion_count for each in good)
    input_count = sum(each.prompt_count for each in good)
    result: dict[str, object] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(requests) - len(good),
        "total_input_tokens": input_count,
        "total_output_tokens": output_count,
        "request_throughput": len(good) / duration_s,
        "output_throughput": output_count / duration_s,
        "total_token_throughput": (input_count + output_count) / duration_s,
        "max_concurrent_requests": most_at_once(requests),
    }
    within = sum(is_within(each, goodput or {}) for each in good)
    result["request_goodput"] = within / duration_s if goodput else None
    for metric in METRICS:
        values = [value * 1e3 for each in good for value in values_of(each, metric)]
        result |= statistics_of(metric, values)
    return result


def values_of(request: RequestTimes, metric: str) -> list[float]:
    """The seconds of one metric: one value, several gaps, or none."""
    value = getattr(request, f"{metric}_s")
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def is_within(request: RequestTimes, limits: Mapping[str, float]) -> bool:
    """Whether every metric is within its limit, in milliseconds."""
    return all(
        value * 1e3 <= limit
        for metric, limit in limits.items()
        for value in values_of(request, metric)
    )


def read_goodput(
    words: tuple[str, ...], metrics: Sequence[str] = GOODPUT_METRICS
) -> dict[str, float]:
    """Limits in milliseconds from `ttft:500` and the like. Raises ConfigError."""
    names = f"{', '.join(metrics[:-1])} or {metrics[-1]}"
    limits = {}
    for word in words:
        metric, _, value = word.partition(":")
        try:
            limits[metric] = float(value)
        except ValueError:
            limits[metric] = -1.0
        if metric not in metrics or not 0 < limits[metric] < math.inf:
            raise ConfigError(
                f"--goodput {word} is not METRIC:MS with {names}; for example ttft:500."
            )
    return limits


def statistics_of(metric: str, values: Sequence[float]) -> dict[str, object]:
    """Mean, median, deviation and percentiles of one metric; each is None without values."""
    shares = {"median": 50.0} | {f"p{share:g}": share for share in PERCENTILES}
    if not values:
        return {f"{word}_{metric}_ms": None for word in ("mean", "std", *shares)}
    found = dict(zip(shares, np.percentile(values, list(shares.values())).tolist(), strict=True))
    found |= {"mean": float(np.mean(values)), "std": float(np.std(values))}
    return {f"{word}_{metric}_ms": value for word, value in found.items()}


def peak_rate(requests: Sequence[RequestTimes]) -> float:
    """Tokens per second in the busiest second of the good requests.

    The run is cut into equal parts of a second or a little less; in whole seconds the last one
    would be too short, and the mean could be above the peak. The tokens of a request are spread
    evenly over its chunks.
    """
    good = [each for each in requests if each.error is None and each.token_times]
    if not good:
        return 0.0
    began_at = min(each.sent_at for each in good)
    ended_at = max(each.ended_at for each in good)
    times = [at for each in good for at in each.token_times]
    part_count = max(1, math.ceil(ended_at - began_at))
    chunks = [
        each.completion_count / len(each.token_times) for each in good for _ in each.token_times
    ]
    parts, _ = np.histogram(times, part_count, (began_at, ended_at), weights=chunks)
    return float(max(parts)) * part_count / (ended_at - began_at)


def most_at_once(requests: Sequence[RequestTimes]) -> int:
    """The most requests that were under way at one moment."""
    changes = sorted(
        change for each in requests for change in ((each.sent_at, 1), (each.ended_at, -1))
    )
    return max(itertools.accumulate(change for _, change in changes), default=0)
