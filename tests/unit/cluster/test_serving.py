"""A fleet with a thread of its own: how it starts, and what is left when it does not."""

import asyncio
import threading

import pytest

from jitney.cluster import serving
from jitney.cluster.replica_messages import Description
from jitney.cluster.serving import FleetThread
from jitney.errors import NoRoom
from tests.unit.cluster.conftest import LocalDispatch


class SilentDispatch(LocalDispatch):
    """A way to replicas that never get ready."""

    async def describe(self) -> Description:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


def test_replicas_that_never_load_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards invariant 8: an ingress would wait for ever, and nobody would learn why."""
    monkeypatch.setattr(serving, "LOADED_S_MAX", 0.01)
    before = set(threading.enumerate())
    with pytest.raises(NoRoom, match=r"No replica has loaded the model within 0\.01 s"):
        FleetThread(SilentDispatch(), 1, "127.0.0.1")
    assert set(threading.enumerate()) <= before, "its thread has ended"
