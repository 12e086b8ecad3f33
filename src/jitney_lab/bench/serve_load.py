"""`jitney bench serve`: load on a running server, with the words of `vllm bench serve`.

Tests: tests/unit/lab/bench/test_serve_load.py and tests/e2e/test_bench.py.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from jitney.errors import SetupError
from jitney_lab.bench.drive import drive
from jitney_lab.bench.http_target import HttpTarget
from jitney_lab.bench.report import Result
from jitney_lab.bench.timing import (
    METRICS,
    PERCENTILES,
    RequestTimes,
    peak_rate,
    percentile,
    summary,
    values_of,
)
from jitney_lab.bench.workload import Job, Workload

CURVES = ("ttft", "tpot", "e2el")
TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per token after it",
    "itl": "Time between chunks",
    "e2el": "End-to-end latency",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """How a load is sent, and what is told about it."""

    max_concurrency: int | None = None
    warmup_count: int = 0
    percentiles: tuple[float, ...] = PERCENTILES
    metrics: tuple[str, ...] = METRICS
    goodput: Mapping[str, float] = field(default_factory=dict)


def measure(
    target: HttpTarget,
    workload: Workload,
    reporting: Reporting,
    ended: Callable[[RequestTimes], None],
) -> tuple[Result, list[RequestTimes]]:
    """Send the workload, and sum up what its requests took; these too, in the order they were sent.

    Raises SetupError if all failed.
    """

    async def run() -> tuple[list[RequestTimes], float]:
        async with target.client() as client:

            def ask(job: Job) -> Awaitable[RequestTimes]:
                return target.ask(client, job)

            limit = reporting.max_concurrency
            first = replace(workload.jobs[0], at_s=0.0)
            warm_up = replace(workload, jobs=(first,) * reporting.warmup_count)
            if warm_up.jobs:
                await drive(warm_up, ask, max_concurrency=limit)
            started_at = time.monotonic()
            requests = await drive(workload, ask, max_concurrency=limit, ended=ended)
            return requests, time.monotonic() - started_at

    requests, duration_s = asyncio.run(run())
    requests.sort(key=lambda each: each.sent_at)
    return _result(target, requests, duration_s, reporting), requests


def details(requests: list[RequestTimes]) -> dict[str, object]:
    """What each request took, in seconds, with vLLM's names."""
    return {
        "input_lens": [each.prompt_count for each in requests],
        "output_lens": [each.completion_count for each in requests],
        "ttfts": [each.ttft_s or 0.0 for each in requests],
        "itls": [each.itl_s for each in requests],
        "start_times": [each.sent_at for each in requests],
        "errors": [each.error or "" for each in requests],
    }


def _result(
    target: HttpTarget, requests: list[RequestTimes], duration_s: float, reporting: Reporting
) -> Result:
    # First what this client is to blame for.
    found = {(each.is_sent, each.error) for each in requests if each.error is not None}
    failures = [reason for _, reason in sorted(found)]
    figures = summary(
        requests,
        duration_s,
        percentiles=reporting.percentiles,
        metrics=reporting.metrics,
        goodput=reporting.goodput,
    )
    if not figures["completed"]:
        raise SetupError(f"Every request failed; the first reason: {failures[0]}.")
    figures["max_output_tokens_per_s"] = peak_rate(requests)
    unsent = sum(not each.is_sent for each in requests)
    if unsent:
        # The server has not seen these.
        bad = sum(each.error is not None for each in requests)
        figures |= {"failed": bad - unsent, "unsent": unsent}
    return Result(
        name="serve",
        # A query of the path may hold a secret.
        title=f"{target.url.partition('?')[0]}, {target.model}",
        columns=("what", "value"),
        rows=tuple(_rows(figures, reporting.percentiles)),
        notes=tuple(f"Failed: {reason}" for reason in failures[:5]),
        figures={
            "model_id": target.model,
            "num_prompts": len(requests),
            "max_concurrency": reporting.max_concurrency,
            "goodput": dict(reporting.goodput),
            # vLLM has the name also where no limit was asked for.
            "request_goodput": None,
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
        if figures.get(f"mean_{metric}_ms") is None:
            continue
        for word in ("mean", "median", *(f"p{share:g}" for share in percentiles)):
            title = f"{word.capitalize()} {metric.upper()} (ms): {TITLES[metric].lower()}"
            rows.append((title, _shown(figures[f"{word}_{metric}_ms"])))
    return rows


def _shown(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
