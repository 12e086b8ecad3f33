"""How one attempt of a request ends, and what follows: an answer, another attempt, or an error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jitney.cluster.accounts import MovingRequest
from jitney.cluster.fleet import ReplicaFleet
from jitney.cluster.replica_messages import Ended, Started, Told
from jitney.core.events import FinishReason
from jitney.core.request import Request, RequestId
from jitney.errors import BackendFailed, EngineStopped, QueueFull

MakeRequest = Callable[..., Request]
MakeCluster = Callable[..., Any]  # Any: the Cluster of conftest.py, which tests cannot import
InLoop = Callable[[Callable[[], Awaitable[None]]], None]

SLOW = {"max_tokens": 200}


def told_as(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[ReplicaFleet, str, Told], Told | None]
) -> None:
    """The fleet is told something else, or nothing, in place of what a replica says."""
    take = ReplicaFleet._take

    def changed(fleet: ReplicaFleet, replica: str, message: Told) -> None:
        told = change(fleet, replica, message)
        if told is not None:
            take(fleet, replica, told)

    monkeypatch.setattr(ReplicaFleet, "_take", changed)


def test_one_that_had_ended_when_its_replica_was_lost_is_answered(
    make_cluster: MakeCluster,
    make_request: MakeRequest,
    in_loop: InLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the engines: an order to make nothing more stopped each one that got it."""

    def lose_at_the_end(fleet: ReplicaFleet, replica: str, message: Told) -> Told | None:
        if not isinstance(message, Ended):
            return message
        fleet._lose(replica)
        return None

    async def test() -> None:
        async with make_cluster(2) as cluster:
            answer = await cluster.fleet.send(make_request(n=2)).result_async()
            assert [each.usage.completion_count for each in answer.completions] == [16, 16]
            assert {each.finish_reason for each in answer.completions} == {FinishReason.LENGTH}
            assert len(cluster.dispatch.sent) == 1

    told_as(monkeypatch, lose_at_the_end)
    in_loop(test)


def test_one_that_stops_engines_ends_as_one_that_kills_them(
    make_cluster: MakeCluster,
    make_request: MakeRequest,
    in_loop: InLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the fleet: a request on which engines fail goes round no more than thrice."""

    def stop(fleet: ReplicaFleet, replica: str, message: Told) -> Told | None:
        if not isinstance(message, Started):
            return message
        fleet._live[RequestId(message.id)].progress.start(0.0)
        return Ended.of(message.id, message.attempt, None, EngineStopped("a fault of its own"))

    async def test() -> None:
        async with make_cluster(2) as cluster:
            with pytest.raises(BackendFailed, match="Every replica"):
                await cluster.fleet.send(make_request()).result_async()
            assert len(cluster.dispatch.sent) == 3

    told_as(monkeypatch, stop)
    in_loop(test)


def test_no_room_for_one_that_runs_is_its_own_end(
    make_cluster: MakeCluster,
    make_request: MakeRequest,
    in_loop: InLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards constraints that are too large for an engine: no other one is asked."""

    def find_no_room(fleet: ReplicaFleet, replica: str, message: Told) -> Told | None:
        if not isinstance(message, Started):
            return message
        return Ended.of(message.id, message.attempt, None, QueueFull("no room", 1.0))

    async def test() -> None:
        async with make_cluster(2) as cluster:
            with pytest.raises(QueueFull, match="no room"):
                await cluster.fleet.send(make_request()).result_async()
            assert len(cluster.dispatch.sent) == 1

    told_as(monkeypatch, find_no_room)
    in_loop(test)


def test_a_suspect_that_makes_a_token_is_none_any_more(
    make_cluster: MakeCluster,
    make_request: MakeRequest,
    in_loop: InLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards those who lost their replicas with the guilty one: they run side by side."""
    begin = ReplicaFleet._begin

    def begin_as_suspect(fleet: ReplicaFleet, live: MovingRequest) -> None:
        begin(fleet, live)
        live.is_suspect = True

    async def test() -> None:
        async with make_cluster(1) as cluster:
            handles = [cluster.fleet.send(make_request(**SLOW)) for _ in range(3)]
            reading = [asyncio.create_task(each.result_async()) for each in handles]
            together = 0
            while together < 3 and not all(each.done() for each in reading):
                live = cluster.fleet._live.values()
                together = sum(each.progress.token_count > 0 for each in live)
                await asyncio.sleep(0.001)
            await asyncio.gather(*reading)
            assert together == 3

    monkeypatch.setattr(ReplicaFleet, "_begin", begin_as_suspect)
    in_loop(test)
