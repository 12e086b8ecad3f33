"""A fleet with a thread of its own: how it starts, and what is left when it does not."""

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.machine.cores import usable_cores
from jitney.config import ServeSettings, Settings
from jitney.errors import NoRoom
from jitney_cluster import serving
from jitney_cluster.serving import ClusterAssembly
from tests.unit.cluster.conftest import LocalDispatch

WAIT_S = 100


class SilentDispatch(LocalDispatch):
    """A way to replicas that never get ready."""

    async def call(self, *_: Any, **routing: Any) -> Any:
        await asyncio.Event().wait()


def test_a_name_on_the_hub_is_looked_up_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guards those who name a model of the hub: a path is wanted where it is made ready."""
    pytest.importorskip("jitney_cluster.on_ray", reason="Ray is not installed here")
    # What Ray is told goes to nobody else in this process.
    monkeypatch.setattr(os, "environ", {**os.environ, "RAY_TMPDIR": str(tmp_path)})
    ready: list[Settings] = []

    def stop(settings: Settings) -> None:
        ready.append(settings)
        raise NoRoom("far enough")

    monkeypatch.setattr(serving, "located", lambda asked: replace(asked, model=tmp_path))
    monkeypatch.setattr(serving, "ready_model", stop)
    with pytest.raises(NoRoom, match="far enough"):
        serving.assemble_cluster(Settings(model=Path("owner/name")), ServeSettings(replicas=2))
    assert [each.model for each in ready] == [tmp_path]
    assert ready[0].threads == max(1, usable_cores() // 2), "as a replica has them"


def assembly_of(dispatch: LocalDispatch) -> ClusterAssembly:
    return ClusterAssembly(dispatch, Settings(), 1, "127.0.0.1", lambda: None)


def test_replicas_that_never_load_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards invariant 8: an ingress would wait for ever, and nobody would learn why."""
    monkeypatch.setattr(serving, "LOADED_S_MAX", 0.01)
    before = set(threading.enumerate())
    with pytest.raises(NoRoom, match=r"No replica has loaded the model within 0\.01 s"):
        assembly_of(SilentDispatch())
    assert set(threading.enumerate()) <= before, "its thread has ended"


class CancelledDispatch(LocalDispatch):
    """A way on which somebody else cancels every call."""

    async def call(self, *_: Any, **routing: Any) -> Any:
        raise asyncio.CancelledError


def test_whoever_opens_a_fleet_hears_of_every_end() -> None:
    """Guards invariant 8: the server waited for ever for a thread that had ended."""
    with pytest.raises(asyncio.CancelledError):
        assembly_of(CancelledDispatch())


class ReadyDispatch(LocalDispatch):
    """A way to one replica, which is there when it is asked for."""

    async def call(self, method: str, *arguments: Any, **routing: Any) -> Any:
        if not self.replicas:
            self.add()
        return await super().call(method, *arguments, **routing)


def test_a_fleet_sees_its_replicas_before_their_first_request() -> None:
    """Guards the page of a new server, and its end: no task is left on a loop that has stopped."""
    dispatch = ReadyDispatch()
    assembly = assembly_of(dispatch)
    tick = threading.Event()
    while assembly.engine.replica_names() != ("r1",):
        tick.wait(0.005)
    assembly.engine.close()

    async def end_replica() -> None:
        await dispatch.kill("r1")
        while len(asyncio.all_tasks()) > 3:  # noqa: ASYNC110, this one and those of the fleet
            await asyncio.sleep(0.005)

    asyncio.run_coroutine_threadsafe(end_replica(), assembly._loop).result(WAIT_S)
    assert not assembly._connecting.done()
    assembly.close()
    assert assembly._connecting.cancelled()
    assert assembly._loop.is_closed()
    assembly.close()
