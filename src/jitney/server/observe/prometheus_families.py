"""Tables of metrics in prometheus-client's terms, with their names here and elsewhere.

`jitney:` is complete. `vllm:` and `llamacpp:` are the names, labels and bounds of vLLM and of
llama-server, so that dashboards made for those servers work here. Any thread; no state.

Tests: tests/unit/server/observe/test_metrics.py.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import ModuleType

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from jitney.server.observe.recorder import Histogram

Labels = dict[str, str]
MetricValues = float | Histogram | Iterable[tuple[Labels, float]]
"""One number, a histogram, or a number for each set of labels."""

MetricTable = dict[str, tuple[str, MetricValues]]
"""Metrics by name: what each is about, and its values."""

OTHER_NAMES = {
    "requests_running": "vllm:num_requests_running llamacpp:requests_processing",
    "requests_waiting": "vllm:num_requests_waiting llamacpp:requests_deferred",
    "prompt_tokens": "vllm:prompt_tokens vllm:prefix_cache_queries",
    "prompt_tokens_cached": (
        "vllm:prompt_tokens_cached vllm:prefix_cache_hits llamacpp:prompt_tokens_cached"
    ),
    "batches": "llamacpp:n_decode",
    "completion_tokens": "vllm:generation_tokens llamacpp:tokens_predicted",
    "first_token_seconds": "vllm:time_to_first_token_seconds",
    "token_gap_seconds": "vllm:inter_token_latency_seconds",
    "request_seconds": "vllm:e2e_request_latency_seconds",
    "queue_seconds": "vllm:request_queue_time_seconds",
    "prefill_seconds": "vllm:request_prefill_time_seconds",
    "generation_seconds": "vllm:request_decode_time_seconds",
    "tick_tokens": "vllm:iteration_tokens_total",
    "request_prompt_tokens": "vllm:request_prompt_tokens",
    "request_completion_tokens": "vllm:request_generation_tokens",
}
"""What other servers call our metrics. A name with a server before it is only theirs."""


def by(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    """A number for each value of a label."""
    return [({label: name}, value) for name, value in values.items()]


def constants(module: ModuleType) -> dict[str, float]:
    """The numbers of a module that have names in capitals, by these names in small letters."""
    return {
        name.lower(): value
        for name, value in inspect.getmembers(module)
        if name.isupper() and isinstance(value, int | float)
    }


def families(kind: str, table: MetricTable, model_name: str = "") -> Iterator[Metric]:
    """The metrics of a table, each under all its names; the kind is gauge, counter or histogram.

    A sample of a counter is called `name` with `_total` after it.
    """
    for name, (about, values) in table.items():
        for each in (name, *OTHER_NAMES.get(name, "").split()):
            server, _, short = each.rpartition(":")
            labels = {"model_name": model_name, "engine": "0"} if server == "vllm" else {}
            family = Metric(f"{server or 'jitney'}:{short}", about, kind)
            for suffix, own, value in _samples(kind, values):
                family.add_sample(family.name + suffix, {**labels, **own}, value)
            yield family


def render(registry: CollectorRegistry) -> bytes:
    """All metrics as text.

    In llama-server the longest sequence is a counter whose name does not end in `_total`.
    prometheus-client cannot write that type, so it is corrected here.
    """
    name = b"# TYPE llamacpp:n_tokens_max "
    return generate_latest(registry).replace(name + b"gauge\n", name + b"counter\n", 1)


def _samples(kind: str, values: MetricValues) -> Iterator[tuple[str, Labels, float]]:
    if isinstance(values, Histogram):
        bounds = [*(repr(float(bound)) for bound in values.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(values.counts), strict=True):
            yield "_bucket", {"le": bound}, count
        yield "_count", {}, sum(values.counts)
        yield "_sum", {}, values.total
        return
    suffix = "_total" if kind == "counter" else ""
    for own, value in [({}, values)] if isinstance(values, int | float) else values:
        yield suffix, own, value
