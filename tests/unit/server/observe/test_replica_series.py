"""Metrics of each replica: bounded labels, memory that adds up, and the moves."""

from dataclasses import replace

from prometheus_client.core import Metric

from jitney.engine.replica_view import ReplicaView
from jitney.engine.stats import Statistics
from jitney.server.observe.replica_series import replica_series
from tests.snapshots_for_tests import IDLE

SNAPSHOT = replace(
    IDLE,
    running_count=2,
    prefilling_count=1,
    waiting_count=3,
    waiting_tokens=5,
    cached_count=1,
    kv_used=60,
    kv_cached=20,
)
VIEW = ReplicaView(
    name="a",
    snapshot=SNAPSHOT,
    prompt_tokens=50,
    cached_tokens=30,
    completion_tokens=70,
    tokens_per_s=1.5,
    prefill_tokens_per_s=2.5,
    detail=None,
)


def rendered(*views: ReplicaView) -> dict[str, Metric]:
    totals = Statistics(0.0, SNAPSHOT, moved=4, replicas_gone=2)
    return {each.name: each for each in replica_series(views, totals)}


def test_every_figure_has_the_name_of_its_replica() -> None:
    families = rendered(VIEW, replace(VIEW, name="b", completion_tokens=1))
    values = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["jitney:replica_up", "a"] == values["jitney:replica_up", "b"] == 1
    assert values["jitney:replica_requests_running", "a"] == 2
    assert values["jitney:replica_requests_waiting", "a"] == 3
    memory = {state: values["jitney:replica_kv_tokens", "a", state] for state in ("used", "cached")}
    assert memory == {"used": 40, "cached": 20}
    assert values["jitney:replica_kv_tokens", "a", "free"] == 40
    assert values["jitney:replica_prompt_tokens_total", "a"] == 50
    assert values["jitney:replica_prompt_tokens_cached_total", "a"] == 30
    assert values["jitney:replica_completion_tokens_total", "a"] == 70
    assert values["jitney:replica_completion_tokens_total", "b"] == 1
    assert values["jitney:requests_moved_total",] == 4
    assert values["jitney:replicas_gone_total",] == 2


def test_without_replicas_only_the_sums_are_there() -> None:
    """Guards the number of series: names of replicas that are gone are nowhere."""
    families = rendered()
    told = {name for name, family in families.items() if family.samples}
    assert told == {"jitney:requests_moved", "jitney:replicas_gone"}
    assert "ends when it is gone" in families["jitney:replica_completion_tokens"].documentation
