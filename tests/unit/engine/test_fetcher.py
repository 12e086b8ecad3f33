"""The fetcher: every fetch is answered, in order, and its thread ends by itself."""

import threading
from queue import SimpleQueue

import pytest

from jitney.core.backend import Fetch, Fetched
from jitney.engine.fetcher import Fetcher
from jitney.errors import BackendCrashed

WAIT_S = 30.0


class SlowDisk:
    """Answers when it is told to; a ticket above 100 ends the backend."""

    def __init__(self) -> None:
        self.turns = threading.Semaphore(0)

    def fetch(self, asked: Fetch) -> Fetched:
        assert self.turns.acquire(timeout=WAIT_S)
        if asked.ticket > 100:
            raise BackendCrashed("it is gone")
        return Fetched(asked.ticket, 10, 12)


def asking(ticket: int) -> Fetch:
    return Fetch(ticket, "scope", (1, 2, 3), least=1, held_max=10)


def test_fetches_are_answered_in_order_and_failures_are_misses() -> None:
    """Guards whoever waits: an answer always comes."""
    disk, answers = SlowDisk(), SimpleQueue[Fetched]()
    fetcher = Fetcher(disk, answers.put)
    for ticket in (1, 101, 2):
        fetcher.ask(asking(ticket))
    assert answers.empty()
    disk.turns.release(3)
    found = [answers.get(timeout=WAIT_S) for _ in range(3)]
    assert found == [Fetched(1, 10, 12), Fetched(101), Fetched(2, 10, 12)]
    for thread in threading.enumerate():
        if thread.name == "jitney-fetcher":
            thread.join(WAIT_S)
    assert all(each.name != "jitney-fetcher" for each in threading.enumerate())
    disk.turns.release()
    fetcher.ask(asking(3))
    assert answers.get(timeout=WAIT_S) == Fetched(3, 10, 12)


def test_without_a_thread_it_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the engine thread on a machine that is out of threads."""
    answers = SimpleQueue[Fetched]()
    fetcher = Fetcher(SlowDisk(), answers.put)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    fetcher.ask(asking(1))
    assert answers.get_nowait() == Fetched(1)
