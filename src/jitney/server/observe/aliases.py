"""The same numbers under the names of vLLM and of llama-server, for dashboards made for those.

Names, labels and bounds are theirs. Metrics of LoRA, multimodal caches and external caches are left
out: this engine has none. Those of speculative decoding are zero, because llama-server always shows
them. Any thread; no state.

Tests: tests/unit/server/observe/test_metrics.py.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from jitney.core.snapshot import Snapshot
from jitney.engine.stats import Statistics, rate
from jitney.server.observe.histograms import Histograms
from jitney.server.observe.prometheus_families import MetricTable, by, families


def vllm_series(totals: Statistics, histograms: Histograms, model_name: str) -> Iterator[Metric]:
    """vLLM's metrics, for engine 0 of the model."""
    labels = {"model_name": model_name, "engine": "0"}
    yield from families("gauge", "vllm", _vllm_gauges(totals.snapshot), labels)
    yield from families("counter", "vllm", _vllm_counters(totals), labels)
    yield from families("histogram", "vllm", _vllm_histograms(histograms), labels)


def _vllm_gauges(snapshot: Snapshot) -> MetricTable:
    waiting, deferred = snapshot.waiting_count, snapshot.deferred_count
    reasons = {"capacity": waiting - deferred, "deferred": deferred}
    return {
        "num_requests_running": ("Requests in execution.", snapshot.running_count),
        "num_requests_waiting": ("Requests that wait.", waiting),
        "num_requests_waiting_by_reason": (
            "Requests that wait, by reason.",
            by("reason", reasons),
        ),
        "kv_cache_usage_perc": (
            "Share of the KV memory that running requests use, 0 to 1.",
            rate(snapshot.kv_used - snapshot.kv_cached, snapshot.kv_tokens),
        ),
    }


def _vllm_counters(totals: Statistics) -> MetricTable:
    prompt, cached = totals.started_prompt_tokens, totals.cached_tokens
    sources = {"local_compute": prompt - cached, "local_cache_hit": cached}
    reasons = {
        "stop": totals.ended["stop"],
        "length": totals.ended["length"],
        "abort": totals.ended["abort"],
        "error": totals.ended["error"] + totals.ended["deadline"],
    }
    return {
        "prefix_cache_queries": ("Tokens looked up in the prefix cache.", prompt),
        "prefix_cache_hits": ("Tokens found in the prefix cache.", cached),
        "num_preemptions": ("Preemptions.", totals.preempted_count),
        "prompt_tokens": ("Prompt tokens.", prompt),
        "prompt_tokens_cached": ("Prompt tokens found in a cache.", cached),
        "generation_tokens": ("Tokens made.", totals.completion_tokens),
        "prompt_tokens_by_source": (
            "Prompt tokens by where they came from.",
            by("source", sources),
        ),
        "request_success": ("Requests that ended, by reason.", by("finished_reason", reasons)),
    }


def _vllm_histograms(of: Histograms) -> MetricTable:
    return {
        "time_to_first_token_seconds": ("Time to the first token.", of.first_token),
        "inter_token_latency_seconds": ("Time between successive tokens.", of.token_gap),
        "request_time_per_output_token_seconds": ("Mean time per token.", of.token_mean),
        "e2e_request_latency_seconds": ("Time from arrival to the end.", of.whole),
        "request_queue_time_seconds": ("Time spent waiting.", of.queued),
        "request_inference_time_seconds": ("Time spent running.", of.inferred),
        "request_prefill_time_seconds": ("Time until the first token.", of.prefilled),
        "request_decode_time_seconds": ("Time from the first token on.", of.generated),
        "request_prompt_tokens": ("Prompt tokens of a request.", of.prompt_length),
        "request_generation_tokens": ("Tokens made for a request.", of.completion_length),
        "request_max_num_generation_tokens": (
            "Tokens of a request's longest completion.",
            of.completion_longest,
        ),
        "request_params_n": ("The parameter n.", of.completions),
        "request_params_max_tokens": ("The parameter max_tokens.", of.max_tokens),
        "iteration_tokens_total": ("Tokens computed in one tick.", of.tick_tokens),
        "request_prefill_kv_computed_tokens": (
            "Prompt tokens of a request that were computed.",
            of.prompt_computed,
        ),
    }


def llamacpp_series(totals: Statistics, histograms: Histograms) -> Iterator[Metric]:
    """llama-server's sixteen metrics. `as_llamacpp` corrects the type of one of them."""
    computed = totals.started_prompt_tokens - totals.cached_tokens
    prefill_s, generation_s = histograms.prefill_s, histograms.generation_s
    counters: MetricTable = {
        "prompt_tokens": ("Prompt tokens processed.", computed),
        "prompt_tokens_cached": ("Prompt tokens found in a cache.", totals.cached_tokens),
        "prompt_seconds": ("Prompt process time.", prefill_s),
        "tokens_predicted": ("Tokens made.", totals.completion_tokens),
        "tokens_predicted_seconds": ("Time spent making tokens.", generation_s),
        "n_decode": ("Forward passes.", totals.batches),
        "spec_decode_num_draft_tokens": ("Tokens drafted.", 0),
        "spec_decode_num_accepted_tokens": ("Drafted tokens that were accepted.", 0),
        "spec_decode_num_drafts": ("Drafts.", 0),
        "spec_decode_num_accepted_tokens_per_pos": (
            "Drafted tokens that were accepted, by position.",
            by("position", {"0": 0}),
        ),
    }
    levels: MetricTable = {
        "prompt_tokens_seconds": ("Prompt tokens per second, mean.", rate(computed, prefill_s)),
        "predicted_tokens_seconds": (
            "Tokens made per second, mean.",
            rate(totals.completion_tokens, generation_s),
        ),
        "requests_processing": ("Requests that run.", totals.snapshot.running_count),
        "requests_deferred": ("Requests that wait.", totals.snapshot.waiting_count),
        "n_tokens_max": ("The longest sequence seen, in tokens.", histograms.tokens_longest),
        "n_busy_slots_per_decode": (
            "Slots in a forward pass, mean.",
            rate(totals.entries, totals.batches),
        ),
    }
    yield from families("counter", "llamacpp", counters)
    yield from families("gauge", "llamacpp", levels)


def as_llamacpp(text: bytes) -> bytes:
    """Correct the one type in the rendered metrics that prometheus-client cannot write.

    In llama-server the longest sequence is a counter whose name does not end in `_total`.
    """
    name = b"# TYPE llamacpp:n_tokens_max "
    return text.replace(name + b"gauge\n", name + b"counter\n", 1)
