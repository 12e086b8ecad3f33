"""The door's threads: whose work begins, and how long it holds a place."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from jitney.server import limits
from jitney.server.admission.workers import Door, Stay

WAIT_S = 20.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What slow work waits for; open in the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def door() -> Iterator[Door]:
    """A door for several callers."""
    made = Door(has_several_callers=True)
    yield made
    made.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110, it changes on another thread
            await asyncio.sleep(0.005)


def test_one_caller_cannot_hold_every_thread(door: Door, gate: threading.Event) -> None:
    """Guards another caller's small errand while one caller's large ones stand in line."""

    async def run() -> None:
        big = [
            asyncio.create_task(door.make(Stay("a"), lambda: gate.wait(WAIT_S))) for _ in range(100)
        ]
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            assert await door.make(Stay("b"), lambda: "small") == "small"
        gate.set()
        assert all(await asyncio.gather(*big))

    asyncio.run(run())


def test_who_leaves_before_its_turn_is_never_begun(door: Door, gate: threading.Event) -> None:
    """Guards the threads, and the count of places, against callers who come and go."""
    begun: list[int] = []

    async def run() -> None:
        slow = [
            asyncio.create_task(door.make(Stay("a"), lambda: gate.wait(WAIT_S)))
            for _ in range(limits.DOOR_THREADS)
        ]
        left = [
            asyncio.create_task(door.make(Stay("a"), lambda: begun.append(1))) for _ in range(20)
        ]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        gate.set()
        await asyncio.gather(*slow)
        assert await door.make(Stay("a"), lambda: "next") == "next"

    asyncio.run(run())
    assert begun == []


def test_a_place_is_held_until_its_work_ends_though_nobody_waits(
    door: Door, gate: threading.Event
) -> None:
    """Guards the bound on threads: leaving early is no way to have more work done at once."""
    begun: list[str] = []

    def slow() -> None:
        begun.append("slow")
        gate.wait(WAIT_S)

    async def run() -> None:
        places = limits.DOOR_THREADS - 1
        for round_number in range(2):
            tasks = [asyncio.create_task(door.make(Stay("a"), slow)) for _ in range(places)]
            await until(lambda: len(begun) == places)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert len(begun) == places, round_number
        gate.set()

    asyncio.run(run())


def test_closing_cancels_whoever_waits(door: Door, gate: threading.Event) -> None:
    """Guards the end of a server: nobody waits for a turn that never comes."""

    async def run() -> None:
        tasks = [
            asyncio.create_task(door.make(Stay("a"), lambda: gate.wait(WAIT_S))) for _ in range(9)
        ]
        await asyncio.sleep(0)
        door.close()
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [each for each in results if isinstance(each, asyncio.CancelledError)]
        assert len(cancelled) >= 9 - limits.DOOR_THREADS
        with pytest.raises(asyncio.CancelledError):
            await door.make(Stay("a"), lambda: None)

    asyncio.run(run())
