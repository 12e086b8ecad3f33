"""Tests of `jitney.server.http.connections`: files, the listening socket, and reading in turns."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from jitney.server import limits
from jitney.server.http.connections import (
    Acceptor,
    Rounds,
    allow_files,
    connections_max,
    listen,
)
from jitney.server.limits import UNSENT_BYTES_MAX

WANTED = limits.CONNECTIONS_MAX + limits.FILES_KEPT


class Limits:
    """The limit on open files of a system that tells of no bound and has one."""

    def __init__(self, soft: int, bound: int) -> None:
        self.soft = soft
        self._bound = bound

    def getrlimit(self, kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_NOFILE
        return self.soft, resource.RLIM_INFINITY

    def setrlimit(self, kind: int, wanted: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        if wanted[0] > self._bound:
            raise ValueError("current limit exceeds maximum limit")
        self.soft = wanted[0]


NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "bound", "soft", "count"),
    [
        (256, 1 << 20, WANTED, limits.CONNECTIONS_MAX),
        (256, 5000, WANTED // 2, WANTED // 2 - limits.FILES_KEPT),
        (256, 256, 256, 128),
        (256, 1, 256, 128),
        (NONE, 0, NONE, limits.CONNECTIONS_MAX),
    ],
    ids=["none", "lower", "as it is", "below what is", "infinite"],
)
def test_a_bound_that_is_not_told_is_found(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    before: int,
    bound: int,
    soft: int,
    count: int,
) -> None:
    """Guards macOS, which begins with 256, tells of no bound, and refuses what is above it. Guards
    the operator: fewer connections than wanted are in force, so it is said."""
    system = Limits(before, bound)
    monkeypatch.setattr(resource, "getrlimit", system.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", system.setrlimit)
    allow_files()
    assert (system.soft, connections_max()) == (soft, count)
    is_said = f"At most {count} connections at once" in caplog.text
    assert is_said == (count < limits.CONNECTIONS_MAX)


WAIT_S = 100.0


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    """This process can open no file in here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A new file gets the lowest number that is free, and no number may reach the limit.
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs the limits of Linux")
def test_whoever_comes_while_no_file_is_left_is_taken_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards newcomers, and the loop from spinning: it looks again, and says why they wait."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_come_while_no_file_is_left(caplog))
    assert caplog.text.count("No connection can be taken") == 1


def test_whoever_was_taken_is_there_when_it_is_closed() -> None:
    """Guards the last to come before a shutdown: they are seen off like all others."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_close_on_arrival()) == 3


async def _close_on_arrival() -> int:
    """How many are there of three who were in line."""
    connections: set[asyncio.Protocol] = set()

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connections.add(self)
            transport.close()

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        acceptor = Acceptor(listener, Greeter, connections)
        listen(listener, UNSENT_BYTES_MAX)
        acceptor.open()
        for _ in range(3):
            stack.enter_context(socket.socket()).connect(listener.getsockname())
        async with asyncio.timeout(WAIT_S):
            while not acceptor.arriving:  # noqa: ASYNC110, it has no event
                await asyncio.sleep(0)
        await acceptor.close()
        return len(connections)


class Listener(socket.socket):
    """Counts how often it was asked for a connection."""

    accept_count = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.accept_count += 1
        return super().accept()


async def _come_while_no_file_is_left(caplog: pytest.LogCaptureFixture) -> None:
    made = asyncio.Event()

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set()
            transport.close()

    with Listener() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        acceptor = Acceptor(listener, Greeter, connections=())
        listen(listener, UNSENT_BYTES_MAX)
        acceptor.open()
        address = listener.getsockname()
        with no_files_left(), caplog.at_level(logging.WARNING):
            client.connect(address)
            async with asyncio.timeout(WAIT_S):
                while listener.accept_count < 3:  # noqa: ASYNC110, it has no event
                    await asyncio.sleep(0.01)
            assert not made.is_set()
        async with asyncio.timeout(WAIT_S):
            await made.wait()
        await acceptor.close()
        with pytest.raises(ConnectionRefusedError), socket.socket() as late:
            late.connect(address)


class Loop:
    """Calls in the next round what it is told in this one."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> bool:
        called, self.soon = self.soon, []
        for each in called:
            each()
        return bool(called)


def test_a_round_has_an_end_and_those_who_wait_go_on_in_turn() -> None:
    """Guards everybody else: in each round no more than so much is read, in turns."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[str]()
    share = limits.STEPS_PER_ROUND // 2

    def sender(name: str, left: int) -> Callable[[], None]:
        def go_on() -> None:
            nonlocal left
            log.append(name)
            rounds.take(share)
            left -= 1
            if left:
                rounds.wait(go_on, is_begun=True)

        return go_on

    for name, left in (("a", 3), ("b", 1), ("c", 2)):
        rounds.wait(sender(name, left), is_begun=False)
    counts = []
    while loop.turn():
        counts.append(len(log))
    assert "".join(log) == "aabacc"
    assert counts == [2, 4, 6, 6]


def test_those_who_begin_do_not_wait_for_all_who_go_on() -> None:
    """Guards small requests: the two lines take turns, however long one of them is."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[int]()
    for at in range(4):
        assert not rounds.is_crowded
        rounds.wait(partial(log.append, at), is_begun=True, held_bytes=limits.READS_BYTES_MAX // 4)
    assert rounds.is_crowded
    rounds.wait(partial(log.append, -1), is_begun=False)
    loop.turn()
    assert log.index(-1) == 0
    assert not rounds.is_crowded


def test_the_two_lines_share_steps_and_not_turns() -> None:
    """Guards small requests: beside large ones as many are read as take as long."""
    loop = Loop()
    rounds, counts = Rounds(loop.call_soon), {1: 0, 64: 0}

    def sender(steps: int) -> Callable[[], None]:
        def go_on() -> None:
            counts[steps] += 1
            rounds.take(steps)
            rounds.wait(go_on, is_begun=steps > 1)

        return go_on

    for steps in (1, 64):
        for _ in range(3):
            rounds.wait(sender(steps), is_begun=steps > 1)
    for _ in range(10):
        loop.turn()
    assert counts[1] >= 64 * (counts[64] - 1)
    assert counts[64] >= 10 * limits.STEPS_PER_ROUND // 128 - 1


def test_what_was_too_much_is_missing_in_the_next_round() -> None:
    """Guards the bound where one step is a large one."""
    loop = Loop()
    rounds = Rounds(loop.call_soon)
    rounds.take(2 * limits.STEPS_PER_ROUND + 1)
    assert rounds.is_over
    for is_over in (True, False, False):
        assert loop.turn()
        assert rounds.is_over is is_over
    assert not loop.turn()


def test_who_has_left_is_not_called() -> None:
    """Guards connections that are gone."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[int]()
    calls = [partial(log.append, at) for at in range(3)]
    for each in calls:
        rounds.wait(each, is_begun=False)
    rounds.leave(calls[1])
    loop.turn()
    assert log == [0, 2]


def test_one_that_fails_does_not_keep_the_others_waiting() -> None:
    """Guards everybody else in the line: want of memory may come up anywhere."""
    loop = Loop()
    rounds, log = Rounds(loop.call_soon), list[str]()

    def fail() -> None:
        raise MemoryError

    rounds.wait(fail, is_begun=False)
    rounds.wait(partial(log.append, "b"), is_begun=False)
    with pytest.raises(MemoryError):
        loop.turn()
    loop.turn()
    assert log == ["b"]


def test_what_left_is_not_held_any_more() -> None:
    """Guards the bound: who goes, or asks twice, is counted once."""
    rounds = Rounds(Loop().call_soon)
    for read in (print, print):
        rounds.wait(read, is_begun=True, held_bytes=limits.READS_BYTES_MAX // 2)
    assert not rounds.is_crowded
    rounds.wait(len, is_begun=False, held_bytes=limits.READS_BYTES_MAX // 2)  # type: ignore[arg-type]
    assert rounds.is_crowded
    rounds.leave(print)
    assert not rounds.is_crowded
