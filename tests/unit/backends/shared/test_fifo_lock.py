"""The lock that is given in order: nobody keeps it by being quick."""

import threading
from collections.abc import Callable

import pytest

from jitney.backends.shared.fifo_lock import FifoLock

WAIT_S = 100.0


def until(holds: Callable[[], bool]) -> None:
    limit = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if holds():
            return
        limit.wait(0.005)
    raise AssertionError("it never came to be")


def test_turns_are_given_in_the_order_in_which_they_are_asked_for() -> None:
    """Guards small texts: work in many pieces asks again at once, and then stands behind."""
    lock = FifoLock()
    order: list[str] = []

    def work(name: str, pieces: int) -> None:
        for _ in range(pieces):
            assert lock.acquire(WAIT_S)
            order.append(name)
            lock.release()

    assert lock.acquire(WAIT_S)
    threads = [threading.Thread(target=work, args=each) for each in (("big", 3), ("small", 1))]
    for count, thread in enumerate(threads, 1):
        thread.start()
        until(lambda count=count: len(lock._queue) == count + 1)  # type: ignore[misc]
    lock.release()
    for thread in threads:
        thread.join(WAIT_S)
    assert order == ["big", "small", "big", "big"]


def test_who_waits_too_long_gives_its_turn_up() -> None:
    """Guards against a turn that is given to nobody, after which all wait for ever."""
    lock = FifoLock()
    assert lock.acquire(0.0)
    assert not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0.0)
    lock.release()


def test_who_is_interrupted_gives_its_turn_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the same when Ctrl-C ends the wait."""
    lock = FifoLock()
    assert lock.acquire(0.0)

    def interrupted(*arguments: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(WAIT_S)
    lock.release()
    assert lock.acquire(0.0)
