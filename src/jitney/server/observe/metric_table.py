"""The metrics of an engine and its replicas: every number once. Any thread; no state.

A name with a server before it is only that server's. Metrics of LoRA, multimodal caches and
external caches are left out: this engine has none. Those of speculative decoding are zero, because
llama-server always shows them.

Of a cluster, metrics without the label `replica` are the sums over all replicas, also of those that
are gone. Only replicas that are there have series of their own: their number is bounded, though
every new one has a new name.

`completion_tokens` counts every token that a sequence took. So after a run it equals the sum of all
`usage` in the replies, and so does `prompt_tokens` for requests that ran.

Tests: tests/unit/server/observe/test_metrics.py.
"""

from collections.abc import Callable

from jitney.core.counters import NAMES
from jitney.core.snapshot import SlotState, Snapshot
from jitney.engine.served_engine import ReplicaView
from jitney.engine.stats import Statistics, Stats, rate
from jitney.server.observe.histograms import HISTOGRAMS
from jitney.server.observe.prometheus_families import Labels, MetricTable, MetricValues, by
from jitney.server.observe.recorder import Histograms

GONE = "The series of a replica ends when it is gone; the sum over all replicas keeps it."

NOT_SPECULATED = ("num_draft_tokens", "num_accepted_tokens", "num_drafts")


def levels(totals: Statistics, stats: Stats, histograms: Histograms) -> MetricTable:
    """What is so now."""
    snapshot = totals.snapshot
    waiting, deferred = snapshot.waiting_count, snapshot.deferred_count
    reasons = {"capacity": waiting - deferred, "deferred": deferred}
    slots = {
        SlotState.PREFILLING.value: snapshot.prefilling_count,
        SlotState.GENERATING.value: snapshot.running_count - snapshot.prefilling_count,
        SlotState.CACHED.value: snapshot.cached_count,
    }
    background = {"running": snapshot.background_running, "waiting": snapshot.background_waiting}
    shares = {kind: getattr(stats, f"{kind}_share") for kind in ("prefill", "decode", "idle")}
    computed = totals.started_prompt_tokens - totals.cached_tokens
    return {
        "requests_running": ("Sequences that hold a slot.", snapshot.running_count),
        "requests_waiting": ("Sequences that wait.", waiting),
        "requests_deferred": ("Sequences that wait, but not for room.", deferred),
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
        "vllm:num_requests_waiting_by_reason": ("Those that wait.", by("reason", reasons)),
        "vllm:kv_cache_usage_perc": (
            "Share of the KV memory that running requests use, 0 to 1.",
            rate(snapshot.kv_used - snapshot.kv_cached, snapshot.kv_tokens),
        ),
        "llamacpp:prompt_tokens_seconds": (
            "Prompt tokens per second, mean.",
            rate(computed, histograms.prefill_s),
        ),
        "llamacpp:predicted_tokens_seconds": (
            "Tokens made per second, mean.",
            rate(totals.completion_tokens, histograms.generation_s),
        ),
        "llamacpp:n_tokens_max": ("Tokens of the longest sequence.", histograms.tokens_longest),
        "llamacpp:n_busy_slots_per_decode": ("Slots in a pass, mean.", stats.avg_batch_size),
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
    passes = {"prefill": totals.prefill_s, "decode": totals.decode_s}
    sources = {"local_compute": prompt - cached, "local_cache_hit": cached}
    reasons = {
        **{name: ended[name] for name in ("stop", "length", "abort")},
        "error": ended["error"] + ended["deadline"],
    }
    events = {name: totals.snapshot.counters.get(name, 0) for name in NAMES}
    fetches = {"hit": events["fetches_found"], "miss": events["fetches_missed"]}
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
        "pass_seconds": ("Seconds in forward passes.", by("kind", passes)),
        "batches": ("Forward passes.", totals.batches),
        "batch_sequences": ("Sequences of all forward passes, added up.", totals.entries),
        "preemptions": (
            "Sequences that lost their slot, by what happened to their memory.",
            by("reason", totals.preempted),
        ),
        "evictions": ("Cached prefixes evicted for room.", totals.evicted),
        "backend_losses": (
            "Failures of the backend, and of attempts to start it again.",
            totals.backend_losses,
        ),
        "disk_fetches": ("Prefixes looked for on disk.", by("result", fetches)),
        "disk_tokens": ("Prompt tokens found on disk.", events["fetched_tokens"]),
        "disk_stores": ("Prompts offered to the disk; it keeps one once.", events["stores"]),
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
        **{f"llamacpp:spec_decode_{name}": ("Always 0.", 0) for name in NOT_SPECULATED},
        "llamacpp:spec_decode_num_accepted_tokens_per_pos": ("Always 0.", by("position", {"0": 0})),
    }


def distributions(histograms: Histograms) -> MetricTable:
    """How values are distributed."""
    return {name: (about, histograms[name]) for name, (about, _) in HISTOGRAMS.items()}


def replica_levels(views: tuple[ReplicaView, ...]) -> MetricTable:
    """What is so now with each replica that is there."""
    return {
        "replica_up": (f"1 while a replica is connected. {GONE}", _each(views, lambda _: 1)),
        "replica_requests_running": (
            "Sequences that hold a slot, by replica.",
            _each(views, lambda view: view.snapshot.running_count),
        ),
        "replica_requests_waiting": (
            "Sequences that wait, by replica.",
            _each(views, lambda view: view.snapshot.waiting_count),
        ),
        "replica_kv_tokens": (
            "Tokens of memory, by replica: in use, kept as cached prefixes, free.",
            [
                ({"replica": view.name, "state": state}, count)
                for view in views
                for state, count in kv_states(view.snapshot).items()
            ],
        ),
    }


def replica_sums(views: tuple[ReplicaView, ...], totals: Statistics) -> MetricTable:
    """What only grows, of each replica that is there; and of those that were lost."""
    return {
        "replica_prompt_tokens": (
            "Prompt tokens of requests that ran on a replica, since it started. A request that "
            f"moved counts on each. {GONE}",
            _each(views, lambda view: view.prompt_tokens),
        ),
        "replica_prompt_tokens_cached": (
            f"Of those, found in the cache of the replica. {GONE}",
            _each(views, lambda view: view.cached_tokens),
        ),
        "replica_completion_tokens": (
            f"Tokens made by a replica, since it started. {GONE}",
            _each(views, lambda view: view.completion_tokens),
        ),
        "requests_moved": ("Times that a request went on with another replica.", totals.moved),
        "replicas_gone": (
            "Connections to replicas that ended: lost ones, stopped ones, silent ones.",
            totals.replicas_gone,
        ),
    }


def _each(
    views: tuple[ReplicaView, ...], value: Callable[[ReplicaView], float]
) -> list[tuple[Labels, float]]:
    return by("replica", {view.name: value(view) for view in views})


def kv_states(snapshot: Snapshot) -> dict[str, float]:
    """Tokens of memory by what they are used for."""
    return {
        "used": snapshot.kv_used - snapshot.kv_cached,
        "cached": snapshot.kv_cached,
        "free": snapshot.kv_tokens - snapshot.kv_used,
    }
