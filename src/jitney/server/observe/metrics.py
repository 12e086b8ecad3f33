"""Prometheus metrics of one server: those of the engine (`metric_table`), and its own.

`jitney:limit` has every limit in force (invariant 9). Other modules count; this one writes the
numbers, when asked and on the caller's thread. Each instance has its own registry, so two servers
in one process do not mix.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from jitney.core import limits
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import EngineState
from jitney.engine.served_engine import ServedEngine
from jitney.server import limits as server_limits
from jitney.server.http.connections import connections_max
from jitney.server.observe.metric_table import (
    distributions,
    levels,
    replica_levels,
    replica_sums,
    sums,
)
from jitney.server.observe.prometheus_families import MetricTable, by, constants, families, render
from jitney.server.observe.recorder import Recorder
from jitney.server.service import Service
from jitney.version import version

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LIMIT_LABELS: Mapping[str, str] = {
    "max_num_seqs": "sequences_max",
    "max_num_batched_tokens": "batch_tokens_max",
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
        return render(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics, for the registry."""
        totals, stats = self._engine.totals(), self._engine.stats()
        histograms, views = self._recorder.histograms(), self._engine.replica_views()
        gauges = self._state() | levels(totals, stats, histograms)
        counters = self._answer_counts() | sums(totals, histograms)
        if views is not None:
            gauges |= replica_levels(views)
            counters |= replica_sums(views, totals)
        yield from families("gauge", gauges, self._model_name)
        yield from families("counter", counters, self._model_name)
        yield from families("histogram", distributions(histograms), self._model_name)
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
        named = constants(limits) | constants(server_limits)
        in_force = {LIMIT_LABELS.get(name, name): value for name, value in named.items()}
        # After the constants: some of them are only the default of a setting.
        for name in SchedulerSettings.__slots__:
            value = getattr(self._engine.settings, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                in_force[LIMIT_LABELS.get(name, name)] = value
        if service is not None:
            in_force |= {
                "body_bytes_max": service.body_limit,
                "bodies_bytes_max": service.admission.bodies_bytes_max,
                "shutdown_s": service.settings.shutdown_timeout,
            }
        return in_force | {
            "kv_tokens": traits.kv_tokens,
            "slots": traits.slots_max,
            "block_tokens": traits.block_tokens,
            "connections_max": connections_max(),
        }
