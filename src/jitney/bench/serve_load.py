"""`jitney bench serve`: load on a running server, with the words of `vllm bench serve`.

Tests: tests/e2e/test_bench.py.
"""

import asyncio
import time
from collections.abc import Callable

from jitney.bench.drive import drive
from jitney.bench.http_target import HttpTarget
from jitney.bench.report import Result
from jitney.bench.timing import METRICS, RequestTimes, percentile, summary, values_of
from jitney.bench.workload import Workload
from jitney.errors import SetupError

CURVES = ("ttft", "tpot", "e2el")
TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per token after it",
    "itl": "Time between tokens",
    "e2el": "End-to-end latency",
}
COUNTS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "duration": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "request_goodput": "Request goodput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
    "max_concurrent_requests": "Peak concurrent requests",
}


def measure(
    target: HttpTarget,
    workload: Workload,
    *,
    max_concurrency: int | None,
    percentiles: tuple[float, ...],
    goodput: dict[str, float],
    ended: Callable[[RequestTimes], None],
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
    failures = sorted({each.error for each in requests if each.error is not None})
    figures = summary(requests, duration_s, percentiles=percentiles, goodput=goodput)
    if not figures["completed"]:
        raise SetupError(f"Every request failed; the first reason: {failures[0]}.")
    return Result(
        name="serve",
        # A query of the path may hold a secret.
        title=f"{target.base_url}{target.endpoint.partition('?')[0]}, {target.model}",
        columns=("what", "value"),
        rows=tuple(_rows(figures, percentiles)),
        notes=tuple(f"Failed: {reason}" for reason in failures[:5]),
        figures={
            "model_id": target.model,
            "num_prompts": len(requests),
            "max_concurrency": max_concurrency,
            "goodput": goodput,
            **figures,
            "percentile_curves_ms": _curves(requests),
        },
    )


def _curves(requests: list[RequestTimes]) -> dict[str, list[float]]:
    """For the plot: the values of each metric at 0, 1, ... 100 percent of the good requests."""
    curves = {}
    for metric in CURVES:
        good = (each for each in requests if each.error is None)
        values = sorted(1e3 * value for each in good for value in values_of(each, metric))
        if values:
            curves[metric] = [round(percentile(values, share), 3) for share in range(101)]
    return curves


def _rows(figures: dict[str, object], percentiles: tuple[float, ...]) -> list[tuple[str, str]]:
    rows = [(title, _shown(figures[key])) for key, title in COUNTS.items() if key in figures]
    for metric in METRICS:
        if f"mean_{metric}_ms" not in figures:
            continue
        for word in ("mean", "median", *(f"p{share:g}" for share in percentiles)):
            title = f"{word.capitalize()} {metric.upper()} (ms): {TITLES[metric].lower()}"
            rows.append((title, _shown(figures[f"{word}_{metric}_ms"])))
    return rows


def _shown(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
