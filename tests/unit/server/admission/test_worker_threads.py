"""Tests of `workers`: whose work begins, and how long it holds a thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from jitney.server import limits
from jitney.server.admission.fair_queue import FairQueue
from jitney.server.admission.worker_threads import WorkerThreads

WAIT_S = 100.0
A, B = ("a", False), ("b", False)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What slow work waits for; open in the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def workers() -> Iterator[WorkerThreads]:
    """For several callers."""
    made = WorkerThreads(has_several_callers=True)
    yield made
    made.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110, it changes on another thread
            await asyncio.sleep(0.005)


def test_one_caller_cannot_hold_every_thread(workers: WorkerThreads, gate: threading.Event) -> None:
    """Guards another caller's small work while one caller's large work waits."""

    async def run() -> None:
        big = [workers.submit(A, lambda: gate.wait(WAIT_S)) for _ in range(100)]
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            assert await workers.submit(B, lambda: "small") == "small"
        gate.set()
        assert all(await asyncio.gather(*big))

    asyncio.run(run())


def test_who_leaves_before_its_turn_is_never_begun(
    workers: WorkerThreads, gate: threading.Event
) -> None:
    """Guards the threads, and the count of those in use, against callers who come and go."""
    begun: list[int] = []

    async def run() -> None:
        slow = [workers.submit(A, lambda: gate.wait(WAIT_S)) for _ in range(limits.WORKER_THREADS)]
        left = [workers.submit(A, lambda: begun.append(1)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        gate.set()
        await asyncio.gather(*slow)
        assert await workers.submit(A, lambda: "next") == "next"

    asyncio.run(run())
    assert begun == []


def test_a_thread_is_held_until_its_work_ends_though_nobody_waits(
    workers: WorkerThreads, gate: threading.Event
) -> None:
    """Guards the bound on threads: leaving early is no way to have more work done at once."""
    begun: list[str] = []

    def slow() -> None:
        begun.append("slow")
        gate.wait(WAIT_S)

    async def run() -> None:
        count = limits.WORKER_THREADS - 1
        for round_number in range(2):
            tasks = [workers.submit(A, slow) for _ in range(count)]
            await until(lambda: len(begun) == count)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert len(begun) == count, round_number
        gate.set()

    asyncio.run(run())


def test_closing_cancels_whoever_waits(workers: WorkerThreads, gate: threading.Event) -> None:
    """Guards the end of a server: nobody waits for a turn that never comes."""

    async def run() -> None:
        tasks = [workers.submit(A, lambda: gate.wait(WAIT_S)) for _ in range(9)]
        await asyncio.sleep(0)
        workers.close()
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [each for each in results if isinstance(each, asyncio.CancelledError)]
        assert len(cancelled) >= 9 - limits.WORKER_THREADS
        with pytest.raises(asyncio.CancelledError):
            await workers.submit(A, lambda: None)

    asyncio.run(run())


def test_work_that_is_done_is_not_searched_for(
    workers: WorkerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the event loop: each end would cost a look through all work of its caller."""
    searches: list[object] = []
    monkeypatch.setattr(FairQueue, "remove", lambda *given: searches.append(given))

    async def run() -> None:
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(workers.submit(A, lambda: None) for _ in range(50)))

    asyncio.run(run())
    assert not searches
