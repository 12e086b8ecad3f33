"""The metrics of an engine in one table: every number once, with its names here and elsewhere.

`jitney:` is complete. `vllm:` and `llamacpp:` are the names, labels and bounds of vLLM and of
llama-server, so that dashboards made for those servers work here. Metrics of LoRA, multimodal
caches and external caches are left out: this engine has none. Those of speculative decoding are
zero, because llama-server always shows them. Any thread; no state.

`completion_tokens` counts every token that a sequence took. So after a run it equals the sum of all
`usage` in the replies, and so does `prompt_tokens` for requests that ran.

Tests: tests/unit/server/observe/test_metrics.py.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from jitney.core.counters import NAMES
from jitney.core.snapshot import SlotState
from jitney.engine.stats import Statistics, Stats, rate
from jitney.server.observe.histograms import Histograms
from jitney.server.observe.prometheus_families import MetricTable, MetricValues, by, families
from jitney.server.observe.replica_series import kv_states

OTHER_NAMES = {
    "requests_running": "vllm:num_requests_running llamacpp:requests_processing",
    "requests_waiting": "vllm:num_requests_waiting llamacpp:requests_deferred",
    "prompt_tokens": "vllm:prompt_tokens vllm:prefix_cache_queries",
    "prompt_tokens_cached": (
        "vllm:prompt_tokens_cached vllm:prefix_cache_hits llamacpp:prompt_tokens_cached"
    ),
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

NOT_SPECULATED = ("num_draft_tokens", "num_accepted_tokens", "num_drafts")


def series(kind: str, table: MetricTable, model_name: str) -> Iterator[Metric]:
    """The families of a table, under all their names; the kind is gauge, counter or histogram."""
    for name, row in table.items():
        for each in (name, *OTHER_NAMES.get(name, "").split()):
            server, _, short = each.rpartition(":")
            labels = {"model_name": model_name, "engine": "0"} if server == "vllm" else None
            yield from families(kind, server or "jitney", {short: row}, labels)


def as_llamacpp(text: bytes) -> bytes:
    """Correct the one type in the rendered metrics that prometheus-client cannot write.

    In llama-server the longest sequence is a counter whose name does not end in `_total`.
    """
    name = b"# TYPE llamacpp:n_tokens_max "
    return text.replace(name + b"gauge\n", name + b"counter\n", 1)


def levels(totals: Statistics, stats: Stats) -> MetricTable:
    """What is so now."""
    snapshot = totals.snapshot
    slots = {
        SlotState.PREFILLING.value: snapshot.prefilling_count,
        SlotState.GENERATING.value: snapshot.running_count - snapshot.prefilling_count,
        SlotState.CACHED.value: snapshot.cached_count,
    }
    background = {"running": snapshot.background_running, "waiting": snapshot.background_waiting}
    shares = {
        "prefill": stats.prefill_share,
        "decode": stats.decode_share,
        "idle": stats.idle_share,
    }
    return {
        "requests_running": ("Sequences that hold a slot.", snapshot.running_count),
        "requests_waiting": ("Sequences that wait.", snapshot.waiting_count),
        "requests_deferred": ("Sequences that wait, but not for room.", snapshot.deferred_count),
        "requests_paused": ("Paused by their callers; they do not wait.", snapshot.paused_count),
        "requests_background": ("Of all sequences, background ones.", by("state", background)),
        "queue_tokens": ("Tokens known of the waiting.", snapshot.waiting_tokens),
        "kv_tokens": ("Tokens of memory, shared ones once.", by("state", kv_states(snapshot))),
        "slots": ("Slots by what they do.", by("state", slots)),
        "uptime_seconds": ("Since the engine was made.", stats.uptime_s),
        "peak_queue_size": ("The most that waited at once.", stats.peak_queue_size),
        "idle_slots": ("How many more sequences could run, up to max_num_seqs.", stats.idle_slots),
        "time_share": (
            "Shares of the time since the start: passes for prefill, for decodes, and the rest.",
            by("kind", shares),
        ),
        "batch_fixed_seconds": _cost("C", stats.fixed_cost_ms),
        "batch_per_sequence_seconds": _cost("c", stats.cost_per_sequence_ms),
    }


def levels_elsewhere(totals: Statistics, stats: Stats, histograms: Histograms) -> MetricTable:
    """Levels and means that only other servers have."""
    snapshot = totals.snapshot
    waiting, deferred = snapshot.waiting_count, snapshot.deferred_count
    reasons = {"capacity": waiting - deferred, "deferred": deferred}
    return {
        "vllm:num_requests_waiting_by_reason": (
            "Sequences that wait, by reason.",
            by("reason", reasons),
        ),
        "vllm:kv_cache_usage_perc": (
            "Share of the KV memory that running requests use, 0 to 1.",
            rate(snapshot.kv_used - snapshot.kv_cached, snapshot.kv_tokens),
        ),
        "llamacpp:prompt_tokens_seconds": (
            "Prompt tokens per second, mean.",
            rate(totals.started_prompt_tokens - totals.cached_tokens, histograms.prefill_s),
        ),
        "llamacpp:predicted_tokens_seconds": (
            "Tokens made per second, mean.",
            rate(totals.completion_tokens, histograms.generation_s),
        ),
        "llamacpp:n_tokens_max": (
            "The longest sequence seen, in tokens.",
            histograms.tokens_longest,
        ),
        "llamacpp:n_busy_slots_per_decode": (
            "Slots in a forward pass, mean.",
            stats.avg_batch_size,
        ),
    }


def _cost(letter: str, cost_ms: float | None) -> tuple[str, MetricValues]:
    about = (
        f"{letter} of T(B) = C + B c, what a batch of B decodes takes, as fitted now; "
        "absent until batches of two sizes were seen."
    )
    return about, [] if cost_ms is None else cost_ms / 1e3


def sums(totals: Statistics, histograms: Histograms) -> MetricTable:
    """What only grows."""
    prompt, cached, ended = totals.started_prompt_tokens, totals.cached_tokens, totals.ended
    computed = {"prefill": totals.prefill_tokens, "decode": totals.decode_tokens}
    sources = {"local_compute": prompt - cached, "local_cache_hit": cached}
    reasons = {
        **{name: ended[name] for name in ("stop", "length", "abort")},
        "error": ended["error"] + ended["deadline"],
    }
    events = {name: totals.snapshot.counters.get(name, 0) for name in NAMES}
    return {
        "requests_accepted": ("Requests accepted.", totals.accepted),
        "requests_ended": (
            "Requests that ended, by how; accepted = ended + live.",
            by("reason", ended),
        ),
        "requests_refused": (
            "Requests that the engine refused, by error; not part of accepted.",
            by("error", dict(sorted(totals.refused.items()))),
        ),
        "prompt_tokens": ("Prompt tokens of requests that ran.", prompt),
        "prompt_tokens_cached": ("Prompt tokens found in the cache.", cached),
        "completion_tokens": ("Tokens made.", totals.completion_tokens),
        "computed_tokens": (
            "Positions that went through a forward pass, recomputed ones included.",
            by("kind", computed),
        ),
        "preemptions": (
            "Sequences that lost their slot, by what happened to their memory.",
            by("reason", totals.preempted),
        ),
        "evictions": ("Cached prefixes evicted for room.", totals.evicted),
        "backend_losses": (
            "Failures of the backend, and of attempts to start it again.",
            totals.backend_losses,
        ),
        "events": ("The scheduler's own counters.", by("event", events)),
        "vllm:num_preemptions": ("Preemptions in favour of others.", totals.preempted_count),
        "vllm:prompt_tokens_by_source": (
            "Prompt tokens by where they came from.",
            by("source", sources),
        ),
        "vllm:request_success": ("Requests that ended, by reason.", by("finished_reason", reasons)),
        "llamacpp:prompt_tokens": ("Prompt tokens computed.", prompt - cached),
        "llamacpp:prompt_seconds": ("Prompt process time.", histograms.prefill_s),
        "llamacpp:tokens_predicted_seconds": ("Time spent making tokens.", histograms.generation_s),
        "llamacpp:n_decode": ("Forward passes.", totals.batches),
        **{f"llamacpp:spec_decode_{name}": ("Always 0.", 0) for name in NOT_SPECULATED},
        "llamacpp:spec_decode_num_accepted_tokens_per_pos": ("Always 0.", by("position", {"0": 0})),
    }


def distributions(of: Histograms) -> MetricTable:
    """How values are distributed."""
    return {
        "first_token_seconds": (
            "From arrival to the first token. Times of background requests count in none of these.",
            of.first_token,
        ),
        "token_gap_seconds": ("Between successive tokens of a completion.", of.token_gap),
        "request_seconds": ("From arrival to the end.", of.whole),
        "queue_seconds": ("Waiting for the first slot.", of.queued),
        "prefill_seconds": ("From the first slot to the first token.", of.prefilled),
        "generation_seconds": ("From the first token to the last.", of.generated),
        "tick_seconds": ("One tick of the engine that ran a batch.", of.tick),
        "forward_seconds": ("The forward pass of a tick.", of.forward),
        "tick_tokens": ("Positions computed in one tick.", of.tick_tokens),
        "request_prompt_tokens": ("Prompt tokens of a request.", of.prompt_length),
        "request_completion_tokens": ("Tokens made for a request.", of.completion_length),
        "vllm:request_time_per_output_token_seconds": ("Mean time per token.", of.token_mean),
        "vllm:request_inference_time_seconds": ("Time spent running.", of.inferred),
        "vllm:request_max_num_generation_tokens": (
            "Tokens of a request's longest completion.",
            of.completion_longest,
        ),
        "vllm:request_params_n": ("The parameter n.", of.completions),
        "vllm:request_params_max_tokens": ("The parameter max_tokens.", of.max_tokens),
        "vllm:request_prefill_kv_computed_tokens": (
            "Prompt tokens of a request that were computed.",
            of.prompt_computed,
        ),
    }
