"""Results come in order, and no worker outlives the pool or its process."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from jitney.errors import SetupError
from jitney_lab.plan.pool import Pool
from tests.e2e.server.processes import wait_until_gone
from tests.unit.lab.plan.cases_for_tests import (
    CASE_BYTES,
    die,
    double,
    fail_or_sleep,
    interrupt_all,
    interrupt_parent,
)

WAIT_S = 60.0


def test_results_are_in_order_and_progress_is_reported() -> None:
    reported: list[tuple[int, int]] = []
    with Pool(2, lambda done, count: reported.append((done, count))) as pool:
        assert pool.map(double, range(3)) == [0, 2, 4]
        assert pool.map(double, [5]) == [10]
    assert reported == [(0, 3), (1, 3), (2, 3), (3, 3), (3, 4), (4, 4)]
    assert active_children() == []


def test_a_failure_ends_the_pool_while_a_large_case_is_being_sent() -> None:
    """Guards the end: a case that nobody reads any more kept the command for ever."""
    cases = [bytes(CASE_BYTES + number) for number in (1, 1, 0, 1, 1, 1, 1)]
    with pytest.raises(ValueError, match="a mistake"), Pool(3) as pool:
        pool.map(fail_or_sleep, [cases[2], *cases])
    assert active_children() == []


def test_an_interrupt_ends_all_workers() -> None:
    with pytest.raises(KeyboardInterrupt), Pool(2) as pool:
        pool.map(interrupt_parent, range(4))
    assert active_children() == []


def test_an_interrupt_waits_until_all_workers_started() -> None:
    """Guards the start: the system gave it to another thread, and a worker had half of its data."""
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    cases = InterruptsAnother(other)
    try:
        with pytest.raises(KeyboardInterrupt), Pool(2) as pool:
            pool.map(double, cases)
    finally:
        ended.set()
        other.join()
    assert cases.all_given
    assert active_children() == []


class InterruptsAnother(Sequence[int]):
    """Three cases. Another thread has the interrupt before the first of them is given."""

    def __init__(self, other: threading.Thread) -> None:
        self._other = other
        self.all_given = False

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: Any) -> Any:
        return range(len(self))[place]

    def __iter__(self) -> Iterator[int]:
        interrupt(self._other)
        yield from range(len(self))
        self.all_given = True


def interrupt(thread: threading.Thread) -> None:
    """Ends when the interrupt has arrived, which the system writes into a socket."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.settimeout(WAIT_S)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, signal.SIGINT)
        try:
            assert reader.recv(1) == bytes([signal.SIGINT])
        finally:
            signal.set_wakeup_fd(before)


def test_a_worker_ignores_the_interrupt_that_a_terminal_sends_to_all() -> None:
    with Pool(2) as pool:
        assert pool.map(interrupt_all, range(4)) == [0, 1, 2, 3]


def test_a_worker_that_the_system_ends_gives_one_sentence() -> None:
    with pytest.raises(SetupError, match="memory ran short"), Pool(2) as pool:
        pool.map(die, range(4))
    assert active_children() == []


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    places = [tmp_path / str(number) for number in range(2)]
    program = (
        "from jitney_lab.plan.pool import Pool\n"
        "from tests.unit.lab.plan.cases_for_tests import note_and_sleep\n"
        "if __name__ == '__main__':\n"
        "    with Pool(2) as pool:\n"
        f"        pool.map(note_and_sleep, {[str(place) for place in places]})\n"
    )
    file = tmp_path / "program.py"
    file.write_text(program)
    root = Path(__file__).parents[4]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    parent = subprocess.Popen([sys.executable, "-P", str(file)], env=environ)
    try:
        wait_for(lambda: all(place.exists() and place.read_text() for place in places))
        pids = [int(place.read_text()) for place in places]
    finally:
        parent.kill()
        parent.wait()
    assert wait_until_gone(*pids)


def wait_for(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.05)
