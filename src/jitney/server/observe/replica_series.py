"""Metrics of each replica of a cluster, as families of prometheus-client. Any thread; no state.

The metrics without the label `replica` are the sums over all replicas, also of those that are gone.
Only replicas that are there have series of their own: their number is bounded, though every new one
has a new name.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from jitney.core.snapshot import Snapshot
from jitney.engine.replica_view import ReplicaView
from jitney.engine.stats import Statistics
from jitney.server.observe.prometheus_families import Labels, MetricTable, families

_GONE = "The series of a replica ends when it is gone; the sum over all replicas keeps it."


def replica_series(views: tuple[ReplicaView, ...], totals: Statistics) -> Iterator[Metric]:
    """All metrics of the replicas that are there, and of those that were lost."""

    def each(value: Callable[[ReplicaView], float]) -> list[tuple[Labels, float]]:
        return [({"replica": view.name}, value(view)) for view in views]

    gauges: MetricTable = {
        "replica_up": (
            f"1 while a replica is connected to this server. {_GONE}",
            each(lambda _: 1),
        ),
        "replica_requests_running": (
            "Sequences that hold a slot, by replica.",
            each(lambda view: view.snapshot.running_count),
        ),
        "replica_requests_waiting": (
            "Sequences that wait, by replica.",
            each(lambda view: view.snapshot.waiting_count),
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
    counters: MetricTable = {
        "replica_prompt_tokens": (
            "Prompt tokens of requests that ran on a replica, since it started. A request that "
            f"moved counts on each. {_GONE}",
            each(lambda view: view.prompt_tokens),
        ),
        "replica_prompt_tokens_cached": (
            f"Of those, found in the cache of the replica. {_GONE}",
            each(lambda view: view.cached_tokens),
        ),
        "replica_completion_tokens": (
            f"Tokens made by a replica, since it started. {_GONE}",
            each(lambda view: view.completion_tokens),
        ),
        "requests_moved": (
            "Times that a request went on with another replica.",
            totals.moved,
        ),
        "replicas_gone": (
            "Connections to replicas that ended: lost ones, stopped ones, silent ones.",
            totals.replicas_gone,
        ),
    }
    yield from families("gauge", "jitney", gauges)
    yield from families("counter", "jitney", counters)


def kv_states(snapshot: Snapshot) -> dict[str, float]:
    """Tokens of memory by what they are used for."""
    return {
        "used": snapshot.kv_used - snapshot.kv_cached,
        "cached": snapshot.kv_cached,
        "free": snapshot.kv_tokens - snapshot.kv_used,
    }
