"""The same numbers under the names of vLLM and of llama-server, for dashboards made for those.

Names, labels and bounds are theirs. What this engine does not have (LoRA, multimodal caches,
external caches) is left out; speculative decoding is there with zeros, since llama-server always
shows it. Any thread; no state.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from jitney.core.snapshot import Snapshot
from jitney.server.observe.measures import Totals
from jitney.server.observe.prometheus_families import (
    Labels,
    counter,
    gauge,
    histogram,
    labelled_counter,
    labelled_gauge,
)


def vllm_series(totals: Totals, snapshot: Snapshot, model_name: str) -> Iterator[Metric]:
    """vLLM's metrics, for engine 0 of the model."""
    labels = {"model_name": model_name, "engine": "0"}
    yield from _vllm_gauges(snapshot, labels)
    yield from _vllm_counters(totals, labels)
    yield from _vllm_histograms(totals, labels)


def _vllm_gauges(snapshot: Snapshot, labels: Labels) -> Iterator[Metric]:
    running, waiting = snapshot.running_count, snapshot.waiting_count
    yield gauge("vllm:num_requests_running", "Requests in execution.", running, labels)
    yield gauge("vllm:num_requests_waiting", "Requests that wait.", waiting, labels)
    reasons = {"capacity": waiting - snapshot.deferred_count, "deferred": snapshot.deferred_count}
    yield labelled_gauge(
        "vllm:num_requests_waiting_by_reason",
        "Requests that wait, by reason.",
        [({**labels, "reason": reason}, count) for reason, count in reasons.items()],
    )
    usage = snapshot.kv_used - snapshot.kv_cached
    yield gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the KV memory that running requests use, 0 to 1.",
        usage / snapshot.kv_tokens if snapshot.kv_tokens else 0.0,
        labels,
    )


def _vllm_counters(totals: Totals, labels: Labels) -> Iterator[Metric]:
    computed = totals.prompt_tokens - totals.cached_tokens
    plain = {
        "prefix_cache_queries": (totals.prompt_tokens, "Tokens looked up in the prefix cache."),
        "prefix_cache_hits": (totals.cached_tokens, "Tokens found in the prefix cache."),
        "num_preemptions": (totals.preempted_count, "Preemptions."),
        "prompt_tokens": (totals.prompt_tokens, "Prompt tokens."),
        "prompt_tokens_cached": (totals.cached_tokens, "Prompt tokens found in a cache."),
        "generation_tokens": (totals.completion_tokens, "Tokens made."),
    }
    for name, (value, about) in plain.items():
        yield counter(f"vllm:{name}", about, value, labels)
    sources = {"local_compute": computed, "local_cache_hit": totals.cached_tokens}
    yield labelled_counter(
        "vllm:prompt_tokens_by_source",
        "Prompt tokens by where they came from.",
        [({**labels, "source": source}, count) for source, count in sources.items()],
    )
    reasons = {
        "stop": totals.ended["stop"],
        "length": totals.ended["length"],
        "abort": totals.ended["abort"],
        "error": totals.ended["error"] + totals.ended["deadline"],
    }
    yield labelled_counter(
        "vllm:request_success",
        "Requests that ended, by reason.",
        [({**labels, "finished_reason": reason}, count) for reason, count in reasons.items()],
    )


def _vllm_histograms(totals: Totals, labels: Labels) -> Iterator[Metric]:
    described = {
        "time_to_first_token_seconds": (totals.first_token, "Time to the first token."),
        "inter_token_latency_seconds": (totals.token_gap, "Time between successive tokens."),
        "request_time_per_output_token_seconds": (totals.token_mean, "Mean time per token."),
        "e2e_request_latency_seconds": (totals.whole, "Time from arrival to the end."),
        "request_queue_time_seconds": (totals.queued, "Time spent waiting."),
        "request_inference_time_seconds": (totals.inferred, "Time spent running."),
        "request_prefill_time_seconds": (totals.prefilled, "Time until the first token."),
        "request_decode_time_seconds": (totals.generated, "Time from the first token on."),
        "request_prompt_tokens": (totals.prompt_length, "Prompt tokens of a request."),
        "request_generation_tokens": (totals.completion_length, "Tokens made for a request."),
        "request_max_num_generation_tokens": (
            totals.completion_longest,
            "Tokens of a request's longest completion.",
        ),
        "request_params_n": (totals.completions, "The parameter n."),
        "request_params_max_tokens": (totals.max_tokens, "The parameter max_tokens."),
        "iteration_tokens_total": (totals.tick_tokens, "Tokens computed in one tick."),
        "request_prefill_kv_computed_tokens": (
            totals.prompt_computed,
            "Prompt tokens of a request that were computed.",
        ),
    }
    for name, (values, about) in described.items():
        yield histogram(f"vllm:{name}", about, values, labels)


def llamacpp_series(totals: Totals, snapshot: Snapshot) -> Iterator[Metric]:
    """llama-server's metrics: its sixteen series, of its types once `as_llamacpp` has seen them."""
    counters = {
        "prompt_tokens": (totals.prompt_tokens - totals.cached_tokens, "Prompt tokens processed."),
        "prompt_tokens_cached": (totals.cached_tokens, "Prompt tokens found in a cache."),
        "prompt_seconds": (totals.prefill_s, "Prompt process time."),
        "tokens_predicted": (totals.completion_tokens, "Tokens made."),
        "tokens_predicted_seconds": (totals.generation_s, "Time spent making tokens."),
        "n_decode": (totals.ticks, "Forward passes."),
        "spec_decode_num_draft_tokens": (0, "Tokens drafted."),
        "spec_decode_num_accepted_tokens": (0, "Drafted tokens that were accepted."),
        "spec_decode_num_drafts": (0, "Drafts."),
    }
    for name, (value, about) in counters.items():
        yield counter(f"llamacpp:{name}", about, value)
    yield counter(
        "llamacpp:spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens that were accepted, by position.",
        0,
        {"position": "0"},
    )
    prompt_rate = _rate(totals.prompt_tokens - totals.cached_tokens, totals.prefill_s)
    levels = {
        "prompt_tokens_seconds": (prompt_rate, "Prompt tokens per second, mean."),
        "predicted_tokens_seconds": (
            _rate(totals.completion_tokens, totals.generation_s),
            "Tokens made per second, mean.",
        ),
        "requests_processing": (snapshot.running_count, "Requests that run."),
        "requests_deferred": (snapshot.waiting_count, "Requests that wait."),
        "n_tokens_max": (totals.tokens_longest, "The longest sequence seen, in tokens."),
        "n_busy_slots_per_decode": (
            _rate(totals.entries, totals.ticks),
            "Slots in a forward pass, mean.",
        ),
    }
    for name, (value, about) in levels.items():
        yield gauge(f"llamacpp:{name}", about, value)


def as_llamacpp(text: bytes) -> bytes:
    """The rendered metrics with the one type that prometheus-client cannot write.

    To llama-server the longest sequence is a counter, and its name does not end in `_total`.
    """
    name = b"# TYPE llamacpp:n_tokens_max "
    return text.replace(name + b"gauge\n", name + b"counter\n", 1)


def _rate(amount: float, count: float) -> float:
    return amount / count if count > 0 else 0.0
