"""`jitney bench serve`: load on a running server, summed up under the names of `vllm bench serve`.

The names of a result are always the same. A figure that there is none of is None.

Tests: tests/unit/lab/bench/test_serve_load.py and tests/e2e/test_bench.py.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import numpy as np

from jitney.errors import SetupError
from jitney_lab.bench.drive import drive
from jitney_lab.bench.http_target import HttpTarget
from jitney_lab.bench.report import Result
from jitney_lab.bench.timing import (
    METRICS,
    PERCENTILES,
    RequestTimes,
    peak_rate,
    summary,
    values_of,
)
from jitney_lab.bench.workload import Workload

CURVES = ("ttft", "tpot", "e2el")
TITLES = {
    "ttft": "time to first token",
    "tpot": "time per token after it",
    "itl": "time between chunks",
    "e2el": "end-to-end latency",
}
COUNTS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "unsent": "Requests that this client could not send",
    "duration": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "request_goodput": "Request goodput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
    "max_output_tokens_per_s": "Peak output token throughput (tok/s)",
    "max_concurrent_requests": "Peak concurrent requests",
}


def measure(
    target: HttpTarget,
    workload: Workload,
    goodput: Mapping[str, float],
    ended: Callable[[RequestTimes], None],
    *,
    max_concurrency: int | None = None,
) -> Result:
    """Send the workload, and sum up what its requests took. Raises SetupError if all failed."""

    async def run() -> tuple[list[RequestTimes], float]:
        async with target.client() as client:
            started_at = time.monotonic()
            requests = await drive(
                workload,
                lambda job: target.ask(client, job),
                max_concurrency=max_concurrency,
                ended=ended,
            )
            return requests, time.monotonic() - started_at

    requests, duration_s = asyncio.run(run())
    result = result_of(target, requests, duration_s, goodput)
    result.figures["max_concurrency"] = max_concurrency
    return result


def result_of(
    target: HttpTarget,
    requests: list[RequestTimes],
    duration_s: float,
    goodput: Mapping[str, float],
) -> Result:
    """What the requests took together. Raises SetupError if all failed."""
    # First what this client is to blame for.
    reasons = {(each.is_sent, each.error) for each in requests if each.error is not None}
    failures = [reason for _, reason in sorted(reasons)]
    figures = summary(requests, duration_s, goodput=goodput)
    if not figures["completed"]:
        raise SetupError(f"Every request failed; the first reason: {failures[0]}.")
    # The server has not seen these.
    unsent = sum(not each.is_sent for each in requests)
    bad = sum(each.error is not None for each in requests)
    # A query of the path may hold a secret.
    url, path = (each.partition("?")[0] for each in (target.url, target.endpoint))
    figures = {
        "model_id": target.model,
        "endpoint": path,
        "ignore_eos": target.ignores_eos,
        "num_prompts": len(requests),
        "goodput": dict(goodput),
        **figures,
        "failed": bad - unsent,
        "unsent": unsent,
        "max_output_tokens_per_s": peak_rate(requests),
        "percentile_curves_ms": {metric: _curve(requests, metric) for metric in CURVES},
    }
    return Result(
        name="serve",
        title=f"{url}, {target.model}",
        columns=("what", "value"),
        rows=tuple(_rows(figures)),
        notes=tuple(f"Failed: {reason}" for reason in failures[:5]),
        figures=figures,
    )


def _curve(requests: list[RequestTimes], metric: str) -> list[float] | None:
    """For the plot: the values at 0, 1, ... 100 percent of the good requests."""
    good = (each for each in requests if each.error is None)
    values = [1e3 * value for each in good for value in values_of(each, metric)]
    return np.percentile(values, range(101)).round(3).tolist() if values else None


def _rows(figures: Mapping[str, object]) -> list[tuple[str, str]]:
    titles = dict(COUNTS)
    for metric in METRICS:
        for word in ("mean", "median", *(f"p{share:g}" for share in PERCENTILES)):
            title = f"{word.capitalize()} {metric.upper()} (ms): {TITLES[metric]}"
            titles[f"{word}_{metric}_ms"] = title
    if not figures["unsent"]:
        del titles["unsent"]
    known = {title: figures[key] for key, title in titles.items() if figures[key] is not None}
    return [(title, _number_text(value)) for title, value in known.items()]


def _number_text(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
