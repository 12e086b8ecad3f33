"""What observers get of a request that moves: one story, one span, and counts by replica."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from jitney.core.request import Request
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Delta
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.stats import Statistics
from jitney.errors import BackendFailed
from jitney.records import (
    MoveReason,
    Record,
    ReplicaGone,
    RequestFailed,
    RequestMoved,
    RequestProgressed,
    RequestStarted,
)
from jitney.server.observe.explain import explain
from jitney.server.observe.metrics import Metrics
from jitney.server.observe.recorder import Recorder
from jitney_cluster.cluster_request import ClusterRequest
from jitney_cluster.request_events import PROGRESS_S, RequestEvents
from tests.clock_for_tests import HandClock
from tests.snapshots_for_tests import IDLE
from tests.unit.cluster.conftest import SLOW, make_cluster, make_request, until


class Observed:
    """The events of a request, a clock, and the records that observers got."""

    def __init__(self, request: Request) -> None:
        self.clock = HandClock()
        self.records: list[Record] = []
        observers = Observers()
        observers.add(self.records.append)
        self.events = RequestEvents(Statistics(0.0, IDLE), observers, self.clock)
        settings = SchedulerSettings(model_len_max=512)
        self.live = ClusterRequest(request, Mailbox(), settings, 0.0, 0.0)

    def accept(self, replica: str, at: float) -> None:
        self.clock.at, self.live.replica = at, replica
        self.events.accept(self.live)

    @property
    def moves(self) -> list[RequestMoved]:
        return [each for each in self.records if isinstance(each, RequestMoved)]


def test_a_move_is_told_when_another_replica_has_taken_it() -> None:
    """Guards the story over several losses: from where, to where, why, and how long it took."""
    observed = Observed(make_request())
    observed.accept("r1", 1.0)
    assert observed.moves == []
    observed.live.lose_place(3.0)
    observed.live.was_lost = True
    observed.accept("r2", 3.5)
    observed.live.lose_place(6.0)
    observed.accept("r3", 8.0)
    first, second = observed.moves
    assert (first.from_replica, first.to_replica, first.reason) == ("r1", "r2", MoveReason.LOST)
    assert (first.at, first.away_ms, first.generated_tokens) == (3.5, 500.0, 0)
    assert (second.from_replica, second.to_replica, second.reason) == ("r2", "r3", MoveReason.LEFT)
    assert second.away_ms == 2000.0


async def test_tokens_are_told_once_in_a_while() -> None:
    """Guards the way of a token: observers do not see each one."""
    async with make_cluster(1) as cluster:
        answer = await cluster.fleet.send(make_request(**SLOW)).result_async()
        told = cluster.recorded(RequestProgressed)
        assert told, "the first token is told"
        assert len(told) <= 2 + answer.total_s / PROGRESS_S
        assert told[0].generated_tokens >= 1


def test_every_time_between_tokens_is_told() -> None:
    """Guards `inter_token_latency_seconds` of a cluster: it has no ticks to count them from."""
    observed = Observed(make_request())
    recorder = Recorder(512)
    observed.accept("r1", 1.0)
    for at in (2.0, 2.25, 2.5, 2.75, 3.0):
        observed.clock.at = at
        observed.live.take(Delta(index=0, text="x", tokens=(1,)), at)
        if at >= observed.live.progress_due_at:
            observed.events.progress(observed.live, at)
    observed.events.end(observed.live, observed.live.answer(3.0))
    told = [each for each in observed.records if isinstance(each, RequestProgressed)]
    assert [each.token_gaps_s for each in told] == [(), (0.25, 0.25), (0.25, 0.25)]
    for record in observed.records:
        recorder.take(record)
    assert recorder.latencies()["gap"] == [0.25] * 4
    assert sum(recorder.histograms()["token_gap_seconds"].counts) == 4


def test_times_between_tokens_are_told_of_a_request_that_fails() -> None:
    """Guards the count: what its caller has seen was there, however it ended."""
    observed = Observed(make_request())
    observed.accept("r1", 1.0)
    observed.live.progress_due_at = 9.0
    for at in (2.0, 2.5):
        observed.live.take(Delta(index=0, text="x", tokens=(1,)), at)
    observed.events.fail(observed.live, BackendFailed("lost"))
    _, progressed, failed = observed.records
    assert isinstance(progressed, RequestProgressed)
    assert (progressed.generated_tokens, progressed.token_gaps_s) == (2, (0.5,))
    assert isinstance(failed, RequestFailed)


async def test_a_request_over_two_replicas_is_one_story() -> None:
    """Guards the trace: one request, its moves as moments of it, and counts that agree."""
    async with make_cluster(2) as cluster:
        recorder = Recorder(512)
        await cluster.texts([make_request(f"first {at}") for at in range(4)])
        await until(lambda: len(cluster.fleet.replica_names()) == 2)
        cluster.records.clear()
        cluster.fleet.observe(recorder.take)
        requests = [make_request(f"prompt {at}", **SLOW) for at in range(6)]
        reading = asyncio.create_task(cluster.texts(requests))
        await cluster.made(40)
        await cluster.dispatch.kill("r1")
        await reading
        moves = cluster.recorded(RequestMoved)
        assert [each.replica for each in cluster.recorded(ReplicaGone)] == ["r1"]
        assert 0 < len(moves) < 6
        for move in moves:
            assert (move.from_replica, move.to_replica) == ("r1", "r2")
            assert move.reason is MoveReason.LOST
            story = recorder.story(move.request_id)
            assert story is not None
            assert story.moves == [move]
            assert (story.replica, story.completion_tokens) == ("r2", 200)
            assert "moved" in [phase for _, phase in story.phases]
            words = explain(story, story.until(0.0))
            assert "moved once to another replica (its replica was lost; " in words
            assert "generated 200 tokens" in words
        started = cluster.recorded(RequestStarted)
        assert len(started) == 6, "each starts once"
        assert {each.replica for each in started} == {"r1", "r2"}
        assert recorder.moves() == moves[::-1]
        assert recorder.latencies()["gap"], "the fleet tells times between tokens"
        stats = cluster.fleet.stats()
        assert (stats.moved_count, stats.replicas_gone_count) == (len(moves), 1)


def by_replica(text: str, name: str) -> dict[str, float]:
    """The values of a metric by replica; that of a metric of the whole fleet has no name."""
    families = text_string_to_metric_families(text)
    samples = [each for family in families for each in family.samples]
    found = [each for each in samples if each.name == f"jitney:{name}"]
    return {each.labels.get("replica", ""): each.value for each in found}


async def test_metrics_are_by_replica_and_the_sum_keeps_what_is_gone() -> None:
    """Guards dashboards: series of dead replicas end, and no sum ever falls."""
    async with make_cluster(2) as cluster:
        metrics = Metrics(cluster.fleet, Recorder(512), "tiny")
        before = metrics.render().decode()
        assert by_replica(before, "replica_up") == {}
        assert by_replica(before, "requests_moved_total")[""] == 0
        await cluster.texts([make_request(f"prompt {at}") for at in range(6)])
        texts = ""
        while by_replica(texts or before, "completion_tokens_total")[""] < 6 * 16:
            await asyncio.sleep(0.05)  # replicas tell their sums now and then
            texts = metrics.render().decode()
        made = by_replica(texts, "replica_completion_tokens_total")
        assert sum(made.values()) == 6 * 16
        assert set(made) == {"r1", "r2"} == set(by_replica(texts, "replica_requests_waiting"))
        assert by_replica(texts, "replica_up") == {"r1": 1.0, "r2": 1.0}
        assert 'jitney:replica_kv_tokens{replica="r1",state="cached"}' in texts
        given = by_replica(texts, "replica_prompt_tokens_total")
        assert sum(given.values()) == by_replica(texts, "prompt_tokens_total")[""]
        await cluster.dispatch.kill("r1")
        await until(lambda: len(cluster.fleet.replica_names()) == 1)
        after = metrics.render().decode()
        assert set(by_replica(after, "replica_completion_tokens_total")) == {"r2"}
        assert by_replica(after, "replica_up") == {"r2": 1.0}
        assert by_replica(after, "completion_tokens_total")[""] == 6 * 16
        assert by_replica(after, "replicas_gone_total")[""] == 1
