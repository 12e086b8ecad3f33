"""Tests of `jitney.server.admission.worker_threads`: whose work is next, and who does it."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from jitney.errors import Draining
from jitney.server import limits
from jitney.server.admission.worker_threads import (
    FairQueue,
    Line,
    NotShared,
    SharedWork,
    WorkerThreads,
)

WORKERS = 4
A, B = ("a", False), ("b", False)


def filled(threads: int, share: int, line: Line, count: int) -> FairQueue[str]:
    """A queue with so much work in a line: a0, a1 and so on."""
    queue: FairQueue[str] = FairQueue(threads, share)
    for number in range(count):
        queue.add(line, f"{line[0]}{number}")
    return queue


def begun(queue: FairQueue[str], count: int) -> list[str]:
    """So many pieces of work one after the other, each done before the next begins."""
    found = []
    for _ in range(count):
        work = queue.begin()
        assert work is not None
        queue.end((work[0], False))
        found.append(work)
    return found


def test_a_small_one_of_another_caller_waits_for_one_turn() -> None:
    """Guards everybody else: a hundred pieces of work of one caller are one turn each."""
    queue = filled(1, 1, A, 100)
    queue.add(B, "b0")
    assert begun(queue, 4) == ["a0", "b0", "a1", "a2"]
    assert len(queue.waiting) == 97


def test_one_caller_leaves_a_worker_for_the_others() -> None:
    """Guards the first moment: what comes while one caller has much work begins at once."""
    queue = filled(WORKERS, WORKERS - 1, A, 10)
    assert [queue.begin() for _ in range(WORKERS)] == ["a0", "a1", "a2", None]
    queue.add(B, "b0")
    assert queue.begin() == "b0"
    queue.add(B, "b1")
    assert queue.begin() is None, "every worker is taken"
    queue.end(A)
    assert queue.begin() == "a3", "it is the turn of a: b had one"
    queue.end(A)
    assert queue.begin() == "b1"


def test_a_lone_caller_may_have_every_worker() -> None:
    """Guards servers without keys, where everyone is one caller."""
    queue = filled(WORKERS, WORKERS, ("", False), WORKERS + 1)
    assert [queue.begin() for _ in range(WORKERS + 1)] == ["0", "1", "2", "3", None]


def test_what_is_withdrawn_is_never_begun() -> None:
    """Guards the work of those who left, and the memory of those who were here."""
    queue = filled(1, 1, A, 3)
    queue.remove(A, "a1")
    assert begun(queue, 2) == ["a0", "a2"]
    queue.remove(A, "a2")
    queue.remove(B, "a2")
    assert queue.begin() is None
    assert (queue._waiting, queue._begun) == ({}, {})


def test_large_work_leaves_a_worker_for_small_work() -> None:
    """Guards servers without keys: four large texts do not make a greeting wait for them."""
    queue = filled(WORKERS, WORKERS, ("", True), WORKERS)
    assert [queue.begin() for _ in range(WORKERS)] == ["0", "1", "2", None]
    for number in range(2):
        queue.add(("", False), f"small {number}")
    assert queue.begin() == "small 0"
    assert queue.begin() is None
    queue.end(("", True))
    assert queue.begin() == "3", "the small ones had a turn"
    queue.end(("", False))
    assert queue.begin() == "small 1"


def test_the_share_of_a_caller_counts_large_and_small_ones() -> None:
    """Guards another caller's worker against one who brings some of each."""
    queue: FairQueue[str] = FairQueue(WORKERS, WORKERS - 1)
    for number in range(WORKERS):
        queue.add(("a", True), f"large {number}")
        queue.add(A, f"small {number}")
    begun_now = [queue.begin() for _ in range(WORKERS)]
    assert begun_now == ["large 0", "small 0", "small 1", None]


def test_a_large_work_waits_for_one_of_another_caller() -> None:
    """Guards a schema that is compiled already: three of another caller were compiled before it."""
    queue = filled(WORKERS, WORKERS - 1, ("a", True), 3)
    assert [queue.begin() for _ in range(2)] == ["a0", None]
    queue.add(("b", True), "b0")
    assert [queue.begin() for _ in range(2)] == ["b0", None]
    queue.end(("a", True))
    assert queue.begin() == "a1"


WAIT_S = 100.0
pytestmark = pytest.mark.anyio


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


async def test_a_thread_is_held_until_its_work_ends_though_nobody_waits(
    workers: WorkerThreads, gate: threading.Event
) -> None:
    """Guards the bound on threads: leaving early is no way to have more work done at once."""
    begun: list[str] = []

    def slow() -> None:
        begun.append("slow")
        gate.wait(WAIT_S)

    count = limits.WORKER_THREADS - 1
    for round_number in range(2):
        tasks = [workers.submit(A, slow) for _ in range(count)]
        await until(lambda: len(begun) == count)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(begun) == count, round_number
    gate.set()


async def test_closing_tells_whoever_waits(workers: WorkerThreads, gate: threading.Event) -> None:
    """Guards the end of a server: nobody waits for a turn that never comes, or gets no error."""
    tasks = [workers.submit(A, lambda: gate.wait(WAIT_S)) for _ in range(9)]
    await asyncio.sleep(0)
    workers.close()
    gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [each for each in results if isinstance(each, Draining)]
    assert len(refused) >= 9 - limits.WORKER_THREADS
    with pytest.raises(Draining):
        await workers.submit(A, lambda: None)


async def test_work_that_is_done_is_not_searched_for(
    workers: WorkerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the event loop: each end would cost a look through all work of its caller."""
    searches: list[object] = []
    monkeypatch.setattr(FairQueue, "remove", lambda *given: searches.append(given))
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(workers.submit(A, lambda: None) for _ in range(50)))
    assert not searches


def doubled(numbers: list[int]) -> list[int | Exception]:
    """Each number twice as large; a negative one is an error."""
    return [2 * each if each >= 0 else ValueError(str(each)) for each in numbers]


async def test_what_comes_in_one_round_is_done_together() -> None:
    """Guards the price of short requests; and an error is that of one caller."""
    done: list[list[int]] = []

    def do(numbers: list[int]) -> list[int | Exception]:
        done.append(numbers)
        return doubled(numbers)

    work = SharedWork(do)
    found = [work.submit(A, 1), work.submit(B, -2), work.submit(A, 3)]
    given_up = work.submit(A, 4)
    given_up.cancel()
    await asyncio.wait(found)
    assert done == [[1, -2, 3]]
    assert [found[0].result(), found[2].result()] == [2, 6]
    assert isinstance(found[1].exception(), ValueError)
    assert await work.submit(A, 5) == 10
    work.close()
    with pytest.raises(Draining):
        await work.submit(A, 6)


async def test_what_cannot_be_done_together_is_done_apart_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards callers beside one whose work takes long or ends a process."""
    monkeypatch.setattr(limits, "APART_S", 3600.0)
    done: list[list[int]] = []

    def fail(numbers: list[int]) -> list[int | Exception]:
        done.append(numbers)
        raise OSError("the process ended")

    work = SharedWork(fail)
    for found in (work.submit(A, 1), work.submit(B, 2)):
        with pytest.raises(NotShared):
            await found
    with pytest.raises(NotShared):
        await work.submit(B, 3)
    assert done == [[1, 2]]
    work.close()
