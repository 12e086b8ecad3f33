"""Replicas are seen before they get a request, and so are those that take their places."""

import asyncio
from typing import Any

import pytest

from jitney_cluster import dispatch as module
from jitney_cluster.dispatch import ReplicaLost, connect_replicas
from jitney_cluster.replica_messages import Address
from tests.unit.cluster.conftest import LocalDispatch, make_cluster, until

NOWHERE = Address("", "127.0.0.1", 1, "")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 0.01)
    monkeypatch.setattr(module, "QUIET_S", 0.01)


async def test_replicas_are_there_without_a_request() -> None:
    """Guards the page of a new cluster, and that after a kill: it would show one replica of two."""
    async with make_cluster(2) as cluster:
        fleet = cluster.fleet
        connecting = asyncio.create_task(
            connect_replicas(cluster.dispatch, fleet._attempts.address, fleet.replica_names)
        )
        await until(lambda: fleet.replica_names() == ("r1", "r2"))
        await cluster.dispatch.kill("r1")
        cluster.add()
        await until(lambda: fleet.replica_names() == ("r2", "r3"))
        assert cluster.dispatch.sent == []
        connecting.cancel()


class BadReplicas(LocalDispatch):
    """The first one is gone, the second one is stuck, and Ray itself cancels the call on the
    third."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, ...]] = []
        self.fourth = asyncio.Event()

    async def call(self, method: str, *arguments: Any, **routing: Any) -> Any:
        assert (method, arguments) == ("connect", (NOWHERE,))
        self.asked.append(routing["connected"])
        if len(self.asked) == 1:
            raise ReplicaLost("gone")
        if len(self.asked) == 2:
            await asyncio.Event().wait()
        if len(self.asked) == 3:
            raise asyncio.CancelledError
        self.fourth.set()


@pytest.mark.parametrize("names", [("r9",), ()])
async def test_others_are_asked_after_one_that_is_lost_or_stuck(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards those that are well, and the end of a server while it asks. Where none is connected,
    one is asked all the time: until then the server says that it is not ready."""
    monkeypatch.setattr(module, "CONNECT_S_MAX", 0.01)
    if not names:
        monkeypatch.setattr(module, "QUIET_S", 3600.0)
    dispatch = BadReplicas()
    connecting = asyncio.create_task(connect_replicas(dispatch, NOWHERE, lambda: names))
    await dispatch.fourth.wait()
    connecting.cancel()
    await asyncio.wait({connecting})
    assert dispatch.asked[:4] == [names] * 4
    assert connecting.cancelled()
