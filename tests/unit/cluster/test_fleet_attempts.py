"""How one attempt of a request ends, and what follows: an answer, another attempt, or an error."""

import asyncio
import json
from collections.abc import Callable

import pytest

from jitney.core.events import FinishReason
from jitney.core.request import RequestId
from jitney.engine.answer import Delta
from jitney.errors import BackendFailed, DeadlineExceeded, EngineStopped, JitneyError, QueueFull
from jitney.server.error_object import refusal_for
from jitney.server.openai.replies import event
from jitney_cluster import attempts
from jitney_cluster.cluster_request import ClusterRequest
from jitney_cluster.fleet import ReplicaFleet
from jitney_cluster.replica_messages import OrderDelta, OrderEnded, OrderStarted, ReplicaMessage
from tests.unit.cluster.conftest import SLOW, make_cluster, make_request

Change = Callable[[ReplicaFleet, str, ReplicaMessage], ReplicaMessage | None]


def change_messages(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """The fleet gets another message, or none, in place of what a replica sends."""
    take = ReplicaFleet._take

    def changed(fleet: ReplicaFleet, replica: str, message: ReplicaMessage) -> None:
        other = change(fleet, replica, message)
        if other is not None:
            take(fleet, replica, other)

    monkeypatch.setattr(ReplicaFleet, "_take", changed)


async def test_one_that_had_ended_when_its_replica_was_lost_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the engines: an order to make nothing more stopped each one that got it."""

    def lose(fleet: ReplicaFleet, replica: str, message: ReplicaMessage) -> ReplicaMessage | None:
        if not isinstance(message, OrderEnded):
            return message
        fleet._lose(replica)
        return None

    change_messages(monkeypatch, lose)

    async with make_cluster(2) as cluster:
        answer = await cluster.fleet.send(make_request(n=2)).result_async()
        assert [each.usage.completion_count for each in answer.completions] == [16, 16]
        assert {each.finish_reason for each in answer.completions} == {FinishReason.LENGTH}
        assert len(cluster.dispatch.sent) == 1


@pytest.mark.parametrize(
    ("reason", "error", "words", "sent_count"),
    [
        pytest.param(EngineStopped("a fault"), BackendFailed, "Every replica", 3, id="it stops"),
        pytest.param(QueueFull("no room", 1.0), QueueFull, "no room", 1, id="no room"),
    ],
)
async def test_one_on_which_engines_fail_when_it_runs_ends(
    monkeypatch: pytest.MonkeyPatch,
    reason: JitneyError,
    error: type[JitneyError],
    words: str,
    sent_count: int,
) -> None:
    """Guards the fleet: a request that stops engines goes round no more than thrice, as one that
    kills them. For a constraint that is too large for an engine no other one is asked."""

    def fail(fleet: ReplicaFleet, replica: str, message: ReplicaMessage) -> ReplicaMessage | None:
        if not isinstance(message, OrderStarted):
            return message
        fleet._live[RequestId(message.request_id)].start(0.0)
        return OrderEnded.of(message.request_id, message.attempt, None, reason)

    change_messages(monkeypatch, fail)

    async with make_cluster(2) as cluster:
        with pytest.raises(error, match=words):
            await cluster.fleet.send(make_request()).result_async()
        assert len(cluster.dispatch.sent) == sent_count


async def test_a_suspect_that_makes_a_token_is_none_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards those who lost their replicas with the guilty one: they run side by side."""
    begin = ReplicaFleet._begin

    def begin_as_suspect(fleet: ReplicaFleet, live: ClusterRequest) -> None:
        begin(fleet, live)
        live.is_suspect = True

    monkeypatch.setattr(ReplicaFleet, "_begin", begin_as_suspect)

    async with make_cluster(1) as cluster:
        handles = [cluster.fleet.send(make_request(**SLOW)) for _ in range(3)]
        reading = [asyncio.create_task(each.result_async()) for each in handles]
        together = 0
        while together < 3 and not all(each.done() for each in reading):
            live = cluster.fleet._live.values()
            together = sum(each.token_count > 0 for each in live)
            await asyncio.sleep(0.001)
        await asyncio.gather(*reading)
        assert together == 3


@pytest.mark.parametrize(
    ("reason", "error"),
    [(FinishReason.FAILED, BackendFailed), (FinishReason.DEADLINE, DeadlineExceeded)],
)
@pytest.mark.parametrize("index", [0, 1])
async def test_a_failure_is_one_though_its_replica_was_lost_before_it_told_why(
    monkeypatch: pytest.MonkeyPatch, reason: FinishReason, error: type[JitneyError], index: int
) -> None:
    """Guards callers: what failed was answered as if it had ended well. The last delta of a
    completion may come in a frame of its own, and its replica be lost before the next.

    With the first completion the replica is lost while the second one runs, which goes on
    elsewhere and ends well.
    """

    def fail(fleet: ReplicaFleet, replica: str, message: ReplicaMessage) -> ReplicaMessage | None:
        if isinstance(message, OrderEnded) and len(losses) == 0:
            losses.append(replica)
            fleet._lose(replica)
            return None
        if not isinstance(message, OrderDelta) or message.delta.finish_reason is None or losses:
            return message
        if message.delta.index != index:
            return message if index else None
        failed = Delta(index=index, text="", finish_reason=reason)
        return OrderDelta(message.request_id, message.attempt, failed)

    losses: list[str] = []
    change_messages(monkeypatch, fail)

    async with make_cluster(2) as cluster:
        handle = cluster.fleet.send(make_request(n=2))
        with pytest.raises(error):
            await handle.result_async()
        assert len(losses) == 1
        assert len(cluster.dispatch.sent) == (1 if index else 2)
        assert handle.ending is not None
        assert handle.ending.answer is not None
        reasons = [each.finish_reason for each in handle.ending.answer.completions]
        assert reasons[index] is reason
        assert reasons[1 - index] is FinishReason.LENGTH


async def test_a_stream_whose_turn_as_a_suspect_does_not_come_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards a stream in its middle, when no status can be sent any more: its caller keeps what
    came, and the last event is the error, in a sentence that is true for it."""
    monkeypatch.setattr(attempts, "PLACE_S_MAX", 0.01)

    def lose(fleet: ReplicaFleet, replica: str, message: ReplicaMessage) -> ReplicaMessage | None:
        if not isinstance(message, OrderDelta):
            return message
        first = Delta(index=0, text="a", tokens=message.delta.tokens[:1])
        take(fleet, replica, OrderDelta(message.request_id, message.attempt, first))
        # The second loss in a row, as if it were the third replica.
        fleet._live[RequestId(message.request_id)]._losses = 1
        fleet._lose(replica)
        return None

    take = ReplicaFleet._take
    change_messages(monkeypatch, lose)

    async with make_cluster(1) as cluster:
        await cluster.fleet._attempts.suspects.acquire(object(), None)
        handle = cluster.fleet.send(make_request(**SLOW))
        came: list[int] = []

        async def read() -> None:
            async for delta in handle:
                came.extend(delta.tokens)

        with pytest.raises(QueueFull) as raised:
            await read()
        assert len(came) == 1
        assert handle.ending is not None
        assert handle.ending.answer is not None
        assert list(handle.ending.answer.completions[0].tokens) == came
        sent = event(refusal_for(raised.value, "req-1").body).decode()
        said = json.loads(sent.removeprefix("data: "))["error"]["message"]
        assert said.startswith("The request lost its replicas")
