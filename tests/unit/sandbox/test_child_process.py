"""A process that is started and spoken to; its life and end are held by `test_sandbox` and by the
tests of the backend's process."""

import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from jitney.sandbox.child_process import ChildProcess
from jitney.sandbox.frames import ChannelClosed

WAIT_S = 100.0


def test_a_process_that_cannot_be_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the files of a machine that has no room for a process; a socket left open warns."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChildProcessError, match="No such file"):
        ChildProcess("jitney.sandbox.child")


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Both ends of every pair of sockets that is made."""
    made: list[socket.socket] = []
    make = socket.socketpair

    def record() -> tuple[socket.socket, socket.socket]:
        if len(made) >= 4:
            raise OSError(24, "Too many open files")
        pair = make()
        made.extend(pair)
        return pair

    monkeypatch.setattr(socket, "socketpair", record)
    return made


def test_without_room_for_the_last_socket_the_others_close(ends: list[socket.socket]) -> None:
    """Guards the files of a process that has almost none left."""
    with pytest.raises(ChildProcessError, match="Too many open files"):
        ChildProcess("jitney.sandbox.child", channel_count=3)
    assert [end.fileno() for end in ends] == [-1] * 4


def test_an_interrupted_start_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, ends: list[socket.socket]
) -> None:
    """Guards the time of a start against Ctrl-C: no socket stays open, and the child ends."""
    started: list[subprocess.Popen[bytes]] = []
    before = set(threading.enumerate())

    class Interrupted(Future[subprocess.Popen[bytes]]):
        def result(self, timeout: float | None = None) -> subprocess.Popen[bytes]:
            started.append(super().result(timeout))
            raise KeyboardInterrupt

    monkeypatch.setattr("jitney.sandbox.child_process.Future", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        ChildProcess("jitney.sandbox.child", "json", "loads")
    assert [end.fileno() for end in ends] == [-1] * 2
    # Only the watching thread waits for the process: of two waits for one process, one fails.
    for watching in set(threading.enumerate()) - before:
        watching.join(WAIT_S)
    assert started[0].returncode == 0


def test_the_end_is_seen_where_the_system_reaps_children() -> None:
    """Guards programs that ignore SIGCHLD: nobody may wait for an end that nobody will report."""
    usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = ChildProcess("jitney.sandbox.child", "json", "loads")
        child.end(WAIT_S)
        assert child.has_ended
    finally:
        signal.signal(signal.SIGCHLD, usual)


def test_the_end_of_what_it_wrote_is_kept() -> None:
    """Guards the sentence that says why a backend's process ended."""
    child = ChildProcess("jitney.sandbox.child", "too", "many", "arguments", keeps_output=True)
    with pytest.raises(ChannelClosed):
        child.channels[0].receive(WAIT_S)
    child.wait_or_kill(WAIT_S)
    assert child.has_ended
    assert (child.status, child.signal) == (1, None)
    assert child.last_lines().endswith("ValueError: too many values to unpack (expected 3)")
    child.end(WAIT_S)


def test_a_process_is_killed_with_its_signal_told() -> None:
    """Guards the number by which a crash is told from an end."""
    child = ChildProcess("jitney.sandbox.child", "jitney", "nothing")
    assert child.status is None
    child.kill()
    assert child.has_ended
    assert (child.signal, child.last_lines()) == (9, "")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing that it forked is ended")
def test_an_end_is_seen_though_a_process_that_it_forked_lives() -> None:
    """Guards streams: a library forked the backend's process, and its end was seen 20 s late."""
    # The number of the socket is a statement too.
    lines = ("import os, signal, time", "os.fork() or time.sleep(9999)", "os.kill(os.getpid(), 9)")
    process = ChildProcess("timeit", *lines, keeps_output=True)
    assert process._ended.wait(WAIT_S)
    assert process.signal == 9
    process.end(0.0)
