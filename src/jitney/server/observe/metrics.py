"""Prometheus metrics: the same numbers under our own names, under vLLM's and under llama-server's.

`jitney:` is complete. `vllm:` and `llamacpp:` are aliases with the same buckets, so that dashboards
made for those servers work here. `jitney:limit` has every limit in force (invariant 9). Other
modules count; this one names and writes the numbers, when asked and on the caller's thread. Each
instance has its own registry, so two servers in one process do not mix.

`completion_tokens` counts every token that a sequence took. So after a run it equals the sum of all
`usage` in the replies, and so does `prompt_tokens` for requests that ran.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from jitney.core import limits
from jitney.core.counters import NAMES
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import SlotState
from jitney.engine.engine import EngineState
from jitney.engine.served_engine import ServedEngine
from jitney.engine.stats import Statistics, Stats
from jitney.server import limits as server_limits
from jitney.server.http.open_files import connections_max
from jitney.server.observe.aliases import as_llamacpp, llamacpp_series, vllm_series
from jitney.server.observe.histograms import Histograms
from jitney.server.observe.prometheus_families import MetricTable, MetricValues, by, families
from jitney.server.observe.recorder import Recorder
from jitney.server.observe.replica_series import kv_states, replica_series
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
        "prefix_stride": "prefix_chunk",
        "failures_max": "strikes_max",
        "suspect_failures": "strikes_quarantine",
        "calls_unsent_max": "door_requests_max",
        "work_small_bytes": "door_small_bytes",
        "worker_threads": "door_threads",
    }
)
"""Settings and constants that have another name as a label of `jitney:limit`."""


class Metrics:
    """The metrics of one engine and its recorder. Any thread may call `render` and `answered`."""

    def __init__(self, engine: ServedEngine, recorder: Recorder, model_name: str) -> None:
        self._engine = engine
        self._recorder = recorder
        self._model_name = model_name
        self._service: Service | None = None
        self._dropped_count: Callable[[], int] = lambda: 0
        self._others: list[Callable[[], Iterator[Metric]]] = []
        self._lock = threading.Lock()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._refusals: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def attach(self, service: Service) -> None:
        """Also count the answers of this service, and show its state and its limits."""
        self._service = service
        service.response_listeners.append(self.answered)

    def attach_log(self, dropped_count: Callable[[], int]) -> None:
        """Also show how many lines of the log were dropped."""
        self._dropped_count = dropped_count

    def attach_other(self, collect: Callable[[], Iterator[Metric]]) -> None:
        """Also show the metrics of another part. Any thread calls `collect`."""
        self._others.append(collect)

    def answered(self, route: str, status: int, refused: str | None = None) -> None:
        """Count an HTTP answer; `refused` is the error code of a refusal.

        `route` is a pattern such as /v1/models, never a raw path.
        """
        with self._lock:
            self._answers[route, status] += 1
            if refused is not None:
                self._refusals[refused] += 1

    def render(self) -> bytes:
        """All metrics as text, in the format of CONTENT_TYPE."""
        return as_llamacpp(generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """All metrics, for the registry."""
        totals, histograms = self._engine.totals(), self._recorder.histograms()
        gauges = {**self._state(), **_levels(totals, self._engine.stats())}
        yield from families("gauge", "jitney", gauges)
        yield from families("counter", "jitney", {**_sums(totals), **self._answer_counts()})
        yield from families("histogram", "jitney", _histograms(histograms))
        yield from vllm_series(totals, histograms, self._model_name)
        yield from llamacpp_series(totals, histograms)
        views = self._engine.replica_views()
        if views is not None:
            yield from replica_series(views, totals)
        for collect in self._others:
            yield from collect()

    def _state(self) -> MetricTable:
        engine = self._engine
        build = {
            "version": version(),
            "model_name": self._model_name,
            "backend": engine.backend.traits.name,
        }
        states = {state.value: int(engine.state is state) for state in EngineState}
        table: MetricTable = {
            "build_info": ("What runs here; always 1.", [(build, 1)]),
            "engine_state": ("1 for the state the engine is in.", by("state", states)),
            "stalled_seconds": (
                "Seconds since a tick was due and none has ended; 0 while none is due.",
                engine.stalled_s,
            ),
            "limit": (
                "Every bound in force; a bound that is not set is not listed.",
                by("limit", dict(sorted(self._limits().items()))),
            ),
        }
        if self._service is not None:
            table["ready"] = (
                "1 while new requests are accepted; /ready says why if not.",
                int(self._service.readiness().is_ok),
            )
        return table

    def _answer_counts(self) -> MetricTable:
        with self._lock:
            answers, refusals = sorted(self._answers.items()), sorted(self._refusals.items())
        return {
            "http_responses": (
                "Answers over HTTP.",
                [({"route": route, "status": str(code)}, n) for (route, code), n in answers],
            ),
            "http_refusals": (
                "Answers over HTTP that were a refusal, by error or code.",
                by("error", dict(refusals)),
            ),
            "observer_failures": (
                "Times that an observer of the engine, such as these metrics, raised; see the log.",
                self._engine.observer_failed_count,
            ),
            "log_lines_dropped": (
                "Lines of the log that found no room, because it was not read or could not be "
                "written.",
                self._dropped_count(),
            ),
        }

    def _limits(self) -> dict[str, float]:
        traits, service = self._engine.backend.traits, self._service
        in_force: dict[str, float] = {}
        for constants in (limits, server_limits):
            for name, value in inspect.getmembers(constants):
                if name.isupper() and isinstance(value, int | float):
                    in_force[LIMIT_LABELS.get(name.lower(), name.lower())] = value
        # After the constants: some of them are only the default of a setting.
        settings = self._engine.settings
        for name in SchedulerSettings.__slots__:
            value = getattr(settings, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                in_force[LIMIT_LABELS.get(name, name)] = value
        if service is not None:
            in_force |= {
                "body_bytes_max": service.body_limit,
                "bodies_bytes_max": service.admission.bodies_bytes_max,
                "shutdown_s": service.settings.shutdown_timeout,
                "stall_s_max": service.settings.stall_timeout,
                "send_s_max": service.settings.read_timeout,
            }
        return in_force | {
            "kv_tokens": traits.kv_tokens,
            "slots": traits.slots_max,
            "block_tokens": traits.block_tokens,
            "connections_max": connections_max(),
        }


def _levels(totals: Statistics, stats: Stats) -> MetricTable:
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
        "requests_deferred": (
            "Sequences that wait for a prefix, window, group, trial, share or live ones, not for "
            "room.",
            snapshot.deferred_count,
        ),
        "requests_paused": (
            "Sequences that their callers paused; not among the waiting.",
            snapshot.paused_count,
        ),
        "requests_background": (
            "Sequences of background requests, such as lines of batches; among the others.",
            by("state", background),
        ),
        "queue_tokens": ("Tokens known of the waiting.", snapshot.waiting_tokens),
        "kv_tokens": (
            "Tokens of memory, shared ones once: in use, kept as cached prefixes, free.",
            by("state", kv_states(snapshot)),
        ),
        "slots": ("Slots by what they do.", by("state", slots)),
        "uptime_seconds": ("Since the engine was made.", stats.uptime_s),
        "peak_queue_size": (
            "The most sequences that waited at once since the start.",
            stats.peak_queue_size,
        ),
        "idle_slots": (
            "How many more sequences could run, up to max_num_seqs.",
            stats.idle_slots,
        ),
        "time_share": (
            "Shares of the time since the start that forward passes spent on prefill and on "
            "decodes, and the rest; together 1.",
            by("kind", shares),
        ),
        "batch_fixed_seconds": _cost("C", stats.fixed_cost_ms),
        "batch_per_sequence_seconds": _cost("c", stats.cost_per_sequence_ms),
    }


def _cost(letter: str, cost_ms: float | None) -> tuple[str, MetricValues]:
    about = (
        f"{letter} of T(B) = C + B c, what a batch of B decodes takes, as fitted now; "
        "absent until batches of two sizes were seen."
    )
    return about, [] if cost_ms is None else cost_ms / 1e3


def _sums(totals: Statistics) -> MetricTable:
    computed = {"prefill": totals.prefill_tokens, "decode": totals.decode_tokens}
    events = {name: totals.snapshot.counters.get(name, 0) for name in NAMES}
    return {
        "requests_accepted": ("Requests accepted.", totals.accepted),
        "requests_ended": (
            "Requests that ended, by how; accepted = ended + live.",
            by("reason", totals.ended),
        ),
        "requests_refused": (
            "Requests that the engine refused, by error; not part of accepted.",
            by("error", dict(sorted(totals.refused.items()))),
        ),
        "prompt_tokens": ("Prompt tokens of requests that ran.", totals.started_prompt_tokens),
        "prompt_tokens_cached": ("Of those, found in the cache.", totals.cached_tokens),
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
    }


def _histograms(of: Histograms) -> MetricTable:
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
    }
