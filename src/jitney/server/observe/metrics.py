"""Prometheus metrics: the same numbers under our own names, under vLLM's and under llama-server's.

`jitney:` is complete; `vllm:` and `llamacpp:` are aliases, bucket for bucket, so that dashboards
made for those servers show this one. Every limit that is in force stands beside what it bounds
(invariant 9). Numbers are added up on the engine thread by `measures`; they are
named and written only when somebody asks, on the asker's thread. The registry is our own: two
servers in one process do not meet.
"""

import inspect
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from jitney.core import limits
from jitney.core.counters import NAMES
from jitney.core.settings import SchedulerSettings
from jitney.core.snapshot import SlotState, Snapshot
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import Engine, EngineState
from jitney.engine.stats import Stats
from jitney.server import limits as server_limits
from jitney.server.http.open_files import connections_max
from jitney.server.observe.aliases import as_llamacpp, llamacpp_series, vllm_series
from jitney.server.observe.measures import Measures, Totals
from jitney.server.observe.prometheus_families import (
    counter,
    gauge,
    histogram,
    labelled_counter,
    labelled_gauge,
)
from jitney.server.service import Service
from jitney.version import version

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LIMIT_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "max_num_seqs": "sequences_max",
        "max_num_batched_tokens": "batch_tokens_max",
        "cache_tokens": "cache_tokens_max",
        "saved_limit": "saved_bytes_max",
        "min_batch_size": "group_size_min",
        "prefill_batch_size": "prefills_max",
        "decode_batch_size": "decodes_max",
        "max_num_queued_reqs": "queue_requests_max",
        "max_num_queued_tokens": "queue_tokens_max",
        "queue_timeout_s": "wait_s_max",
        "request_timeout_s": "total_s_max",
    }
)
"""Settings that dashboards know under another label of `jitney:limit`."""


class Log(Protocol):
    """What drops lines rather than wait for a reader."""

    @property
    def dropped_count(self) -> int:
        """Lines that were never written."""
        ...


class Metrics:
    """Watches one engine from its making on. `render` and `answered` may be called anywhere."""

    def __init__(self, engine: Engine, model_name: str, clock: Clock | None = None) -> None:
        self._engine = engine
        self._model_name = model_name
        self._service: Service | None = None
        self._log: Log | None = None
        self._clock = clock or SystemClock()
        self._measures = Measures(engine.settings.model_len_max)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        engine.observe(self._measures.take)

    def attach(self, service: Service) -> None:
        """Count what this one answers as well, and show how it is and what bounds it."""
        self._service = service
        service.answer_listeners.append(self.answered)

    def attach_log(self, log: Log) -> None:
        """Count the lines that this one drops as well."""
        self._log = log

    def answered(self, route: str, status: int, refused: str | None = None) -> None:
        """An HTTP answer went out, which says why if it is a refusal.

        `route` is a pattern such as /v1/models, never a raw path, and `refused` a word of ours.
        """
        self._measures.answered(route, status, refused)

    def render(self) -> bytes:
        """All metrics as text, in the format of CONTENT_TYPE."""
        return as_llamacpp(generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """All metrics, for the registry."""
        totals = self._measures.copied()
        snapshot = self._engine.snapshot()
        yield from self._own_levels(totals, snapshot)
        yield from _own_totals(totals, snapshot)
        yield counter(
            "jitney:observer_failures",
            "Times that an observer of the engine, such as these metrics, raised; see the log.",
            self._engine.observer_failed_count,
        )
        yield counter(
            "jitney:log_lines_dropped",
            "Lines of the log that found no room, because it was not read or could not be written.",
            0 if self._log is None else self._log.dropped_count,
        )
        yield from _own_histograms(totals)
        yield from self._limits()
        yield from vllm_series(totals, snapshot, self._model_name)
        yield from llamacpp_series(totals, snapshot)

    def _own_levels(self, totals: Totals, snapshot: Snapshot) -> Iterator[Metric]:
        engine = self._engine
        build = {
            "version": version(),
            "model_name": self._model_name,
            "backend": engine.backend.traits.name,
        }
        yield labelled_gauge("jitney:build_info", "What runs here; always 1.", [(build, 1)])
        states = [({"state": state.value}, int(engine.state is state)) for state in EngineState]
        yield labelled_gauge("jitney:engine_state", "1 for the state the engine is in.", states)
        if self._service is not None:
            yield gauge(
                "jitney:ready",
                "1 while new work is welcome; /ready says why when it is not.",
                int(self._service.readiness().is_ok),
            )
        yield gauge(
            "jitney:stalled_seconds",
            "How long a tick has been due and none has ended; 0 while none is due.",
            engine.still_s,
        )
        yield from _own_shares(engine.stats())
        yield gauge(
            "jitney:requests_running", "Sequences that hold a slot.", snapshot.running_count
        )
        yield gauge("jitney:requests_waiting", "Sequences that wait.", snapshot.waiting_count)
        yield gauge(
            "jitney:requests_deferred",
            "Of the waiting, those who wait for a prefix, window, group, trial or share, not for "
            "room.",
            snapshot.deferred_count,
        )
        yield gauge(
            "jitney:requests_paused",
            "Sequences that their callers paused; not among the waiting.",
            snapshot.paused_count,
        )
        yield gauge("jitney:queue_tokens", "Tokens known of the waiting.", snapshot.waiting_tokens)
        kv = {
            "used": snapshot.kv_used - snapshot.kv_cached,
            "cached": snapshot.kv_cached,
            "free": snapshot.kv_tokens - snapshot.kv_used,
        }
        yield labelled_gauge(
            "jitney:kv_tokens",
            "Tokens of memory, shared ones once: in use, kept as cached prefixes, free.",
            [({"state": state}, count) for state, count in kv.items()],
        )
        slots = {
            SlotState.PREFILLING: snapshot.prefilling_count,
            SlotState.GENERATING: snapshot.running_count - snapshot.prefilling_count,
            SlotState.CACHED: snapshot.cached_count,
        }
        yield labelled_gauge(
            "jitney:slots",
            "Slots by what they do.",
            [({"state": state.value}, count) for state, count in slots.items()],
        )

    def _limits(self) -> Iterator[Metric]:
        traits, service = self._engine.backend.traits, self._service
        in_force: dict[str, float] = {}
        for constants in (limits, server_limits):
            for name, value in inspect.getmembers(constants):
                if name.isupper() and isinstance(value, int | float):
                    in_force[name.lower()] = value
        # After the constants: some are only what a setting is when nobody sets it.
        settings = self._engine.settings
        for name in SchedulerSettings.__slots__:
            value = getattr(settings, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                in_force[LIMIT_LABELS.get(name, name)] = value
        if service is not None:
            in_force |= {
                "body_bytes_max": service.body_limit,
                "bodies_bytes_max": service.bodies_bytes_max,
                "shutdown_s": service.settings.shutdown_timeout,
                "stall_s_max": service.settings.stall_timeout,
                "send_s_max": service.settings.read_timeout,
                "ping_s": service.settings.sse_ping_interval,
            }
        in_force |= {
            "kv_tokens": traits.kv_tokens,
            "slots": traits.slots_max,
            "block_tokens": traits.block_tokens,
            "connections_max": connections_max(),
        }
        yield labelled_gauge(
            "jitney:limit",
            "Every bound in force; a bound that is not set is not listed.",
            [({"limit": name}, value) for name, value in sorted(in_force.items())],
        )


def _own_shares(stats: Stats) -> Iterator[Metric]:
    """What the engine's own statistics know and no record tells."""
    yield gauge("jitney:uptime_seconds", "Since the engine was made.", stats.uptime_s)
    yield gauge(
        "jitney:peak_queue_size",
        "The most sequences that waited at once since the start.",
        stats.peak_queue_size,
    )
    yield gauge(
        "jitney:idle_slots",
        "Sequences that could run beside those who run, up to max_num_seqs.",
        stats.idle_slots,
    )
    shares = {
        "prefill": stats.prefill_share,
        "decode": stats.decode_share,
        "idle": stats.idle_share,
    }
    yield labelled_gauge(
        "jitney:time_share",
        "Shares of the time since the start that forward passes spent on prefill and on decodes, "
        "and the rest; together 1.",
        [({"kind": kind}, share) for kind, share in shares.items()],
    )
    costs = {
        "fixed": ("C", stats.fixed_cost_ms),
        "per_sequence": ("c", stats.cost_per_sequence_ms),
    }
    for name, (letter, cost_ms) in costs.items():
        yield labelled_gauge(
            f"jitney:batch_{name}_seconds",
            f"{letter} of T(B) = C + B c, what a batch of B decodes takes, as fitted now; "
            "absent until batches of two sizes were seen.",
            [] if cost_ms is None else [({}, cost_ms / 1e3)],
        )


def _own_totals(totals: Totals, snapshot: Snapshot) -> Iterator[Metric]:
    yield counter("jitney:requests_accepted", "Requests taken.", totals.accepted)
    yield labelled_counter(
        "jitney:requests_ended",
        "Requests that ended, by how; accepted = ended + live.",
        [({"reason": reason}, count) for reason, count in totals.ended.items()],
    )
    yield labelled_counter(
        "jitney:requests_refused",
        "Requests turned away by the engine, by error; not part of accepted.",
        [({"error": name}, count) for name, count in sorted(totals.refused.items())],
    )
    yield counter(
        "jitney:prompt_tokens", "Prompt tokens of requests that ran.", totals.prompt_tokens
    )
    yield counter(
        "jitney:prompt_tokens_cached", "Of those, found in the cache.", totals.cached_tokens
    )
    yield counter("jitney:completion_tokens", "Tokens made.", totals.completion_tokens)
    computed = {"prefill": totals.prefill_tokens, "decode": totals.decode_tokens}
    yield labelled_counter(
        "jitney:computed_tokens",
        "Positions that went through a forward pass, recomputed ones included.",
        [({"kind": kind}, count) for kind, count in computed.items()],
    )
    yield labelled_counter(
        "jitney:preemptions",
        "Sequences that lost their slot, by what became of their memory.",
        [({"reason": reason}, count) for reason, count in totals.preempted.items()],
    )
    yield counter("jitney:evictions", "Cached prefixes given up for room.", totals.evicted)
    yield counter(
        "jitney:backend_losses",
        "Failures of the backend, and of attempts to start it again.",
        totals.backend_losses,
    )
    yield labelled_counter(
        "jitney:events",
        "The scheduler's own counters.",
        [({"event": name}, snapshot.counters.get(name, 0)) for name in NAMES],
    )
    yield labelled_counter(
        "jitney:http_responses",
        "Answers over HTTP.",
        [
            ({"route": route, "status": status}, count)
            for (route, status), count in sorted(totals.http.items())
        ],
    )
    yield labelled_counter(
        "jitney:http_refusals",
        "Answers over HTTP that were a refusal, by its error or its code, whoever refused.",
        [({"error": name}, count) for name, count in sorted(totals.http_refused.items())],
    )


def _own_histograms(totals: Totals) -> Iterator[Metric]:
    described = {
        "first_token_seconds": (totals.first_token, "From arrival to the first token."),
        "token_gap_seconds": (totals.token_gap, "Between successive tokens of a completion."),
        "request_seconds": (totals.whole, "From arrival to the end."),
        "queue_seconds": (totals.queued, "Waiting for the first slot."),
        "prefill_seconds": (totals.prefilled, "From the first slot to the first token."),
        "generation_seconds": (totals.generated, "From the first token to the last."),
        "tick_seconds": (totals.tick, "One turn of the engine that ran a batch."),
        "forward_seconds": (totals.forward, "The forward pass of a tick."),
        "tick_tokens": (totals.tick_tokens, "Positions computed in one tick."),
        "request_prompt_tokens": (totals.prompt_length, "Prompt tokens of a request."),
        "request_completion_tokens": (totals.completion_length, "Tokens made for a request."),
    }
    for name, (values, about) in described.items():
        yield histogram(f"jitney:{name}", about, values)
