"""Suspects run one at a time, and nobody waits for ever."""

import asyncio
from typing import cast

import pytest

from jitney.errors import DeadlineExceeded, QueueFull
from jitney_cluster import attempts
from jitney_cluster.attempts import SuspectLock
from jitney_cluster.cluster_request import ClusterRequest


def suspect() -> ClusterRequest:
    """Only who it is counts."""
    return cast(ClusterRequest, object())


async def test_the_next_one_runs_when_the_holder_releases_the_lock() -> None:
    lock, first, second = SuspectLock(), suspect(), suspect()
    await lock.acquire(first, None)
    waiting = asyncio.create_task(lock.acquire(second, None))
    lock.release(second)
    await asyncio.sleep(0)
    assert not waiting.done()
    lock.release(first)
    await waiting
    lock.release(first)  # it does not hold it any more
    with pytest.raises(DeadlineExceeded):
        await lock.acquire(suspect(), 0.01)


async def test_a_lock_that_is_never_free_is_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PLACE_S_MAX", 0.01)
    lock = SuspectLock()
    await lock.acquire(suspect(), None)
    with pytest.raises(QueueFull, match="tried before it"):
        await lock.acquire(suspect(), None)
