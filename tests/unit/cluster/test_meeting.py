"""Replicas are seen before they get a request, and so are those that take their places."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jitney_cluster import meeting
from jitney_cluster.dispatch import ReplicaLost
from jitney_cluster.meeting import Meeting
from jitney_cluster.replica_messages import Address

MakeCluster = Callable[..., Any]  # Any: the Cluster of conftest.py
InLoop = Callable[[Callable[[], Awaitable[None]]], None]
NOWHERE = Address("", "127.0.0.1", 1, "")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEET_S", 0.01)
    monkeypatch.setattr(meeting, "QUIET_S", 0.01)


def test_replicas_are_there_without_a_request(make_cluster: MakeCluster, in_loop: InLoop) -> None:
    """Guards the page of a new cluster, and that after a kill: it would show one replica of two."""

    async def test() -> None:
        async with make_cluster(2) as cluster:
            fleet = cluster.fleet

            def names() -> tuple[str, ...]:
                return tuple(each.name for each in fleet.replica_views())

            async def seen(*expected: str) -> None:
                while names() != expected:  # noqa: ASYNC110, a test polls
                    await asyncio.sleep(0.005)

            asking = Meeting(cluster.dispatch, fleet._address, names)
            await seen("r1", "r2")
            await cluster.dispatch.kill("r1")
            cluster.add()
            await seen("r2", "r3")
            assert cluster.dispatch.sent == []
            await asking.close()

    in_loop(test)


class BadReplicas:
    """The first one is gone, the second one is stuck."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.third = asyncio.Event()

    async def meet(self, address: Address, met: tuple[str, ...]) -> None:
        assert address is NOWHERE
        self.asked.append(met)
        if len(self.asked) == 1:
            raise ReplicaLost("gone")
        if len(self.asked) == 2:
            await asyncio.Event().wait()
        self.third.set()


def test_others_are_asked_after_one_that_is_lost_or_stuck(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards those that are well, and the end of a server while it asks."""
    monkeypatch.setattr(meeting, "MEET_S_MAX", 0.01)

    async def test() -> None:
        dispatch = BadReplicas()
        asking = Meeting(dispatch, NOWHERE, lambda: ("r9",))
        await dispatch.third.wait()
        await asking.close()
        assert dispatch.asked[:3] == [("r9",)] * 3
        assert asking._asking.cancelled()

    in_loop(test)


def test_a_server_without_a_replica_asks_for_one_all_the_time(
    in_loop: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards callers: until one has connected, the server says that it is not ready."""
    monkeypatch.setattr(meeting, "MEET_S_MAX", 0.01)
    monkeypatch.setattr(meeting, "QUIET_S", 3600.0)

    async def test() -> None:
        dispatch = BadReplicas()
        asking = Meeting(dispatch, NOWHERE, tuple)
        await dispatch.third.wait()
        await asking.close()
        assert dispatch.asked[:3] == [()] * 3

    in_loop(test)
