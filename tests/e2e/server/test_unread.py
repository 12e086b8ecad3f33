"""`jitney serve` whose log or output nobody reads, cannot be written, or is gone with its terminal.

Each server is a process with streams that the test made; none may wait for them.
"""

import contextlib
import itertools
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.server.harness import WAIT_S, events, lines_of, wait_until
from tests.e2e.server.pace import SLOW_PROGRAM
from tests.e2e.server.processes import BROKEN, OURS, ServedProcess, backend_of, served

NARROW = """
from jitney.cli.main import run
from jitney.server import limits

limits.LOG_BYTES_MAX = 8192
run()
"""
"""A server that keeps less of its log, so that a test fills it sooner."""
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes standard input the terminal that the process belongs to, whatever ran these tests: under
nohup the signal would be ignored."""
DROPPED, MADE = "log_lines_dropped_total", "completion_tokens_total"


def counted(server: ServedProcess, name: str) -> int:
    found = re.search(rf"^jitney:{name} (\d+)", server.client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def drops_lines(server: ServedProcess) -> bool:
    """Whether lines of the log are dropped after some more of them."""
    for _ in range(100):
        assert server.client.get("/health").status_code == 200
    return counted(server, DROPPED) > 0


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """The end of a pipe that takes nothing more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


@contextlib.contextmanager
def broken_pipe() -> Iterator[int]:
    """The end of a pipe whose other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextlib.contextmanager
def full_disk() -> Iterator[int]:
    """A file that takes nothing."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as file:
        yield file.fileno()


NOHUP_CLOSED = ("sh", "-c", 'trap "" HUP; exec "$@" >&- 2>&-', "sh", *OURS)


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """Guards everyone: one unread pipe held the event loop, and with it every stream, /health and
    the signal to stop."""
    program = (sys.executable, "-c", NARROW)
    with served(tmp_path, program=program, stdout=None, stderr=subprocess.PIPE) as server:
        assert any(drops_lines(server) for _ in range(40)), "everything is kept"
        server.end()


@pytest.mark.parametrize("stream", [full_pipe, broken_pipe, full_disk])
def test_streams_that_take_nothing_stop_nothing(
    tmp_path: Path, stream: Callable[[], contextlib.AbstractContextManager[int]]
) -> None:
    """Guards a server whose output and log go nowhere: it starts, lives, and ends with 0."""
    with stream() as end, served(tmp_path, stdout=end, stderr=end) as server:
        for _ in range(20):
            assert server.client.get("/health").status_code == 200
        if stream is not full_pipe:
            # One is being written while the answer is; and each look is one more.
            looks = itertools.count()
            wait_until(lambda: counted(server, DROPPED) >= 20 + next(looks), "lines are missing")
        server.end()


def test_closed_streams_are_no_others_and_nohup_is_obeyed(tmp_path: Path) -> None:
    """Guards connections: a file that is opened next gets the number of a stream that is closed,
    and what is logged would be sent to somebody. Guards `nohup jitney serve &`: whoever has a
    signal ignored wants it ignored."""
    with served(tmp_path, program=NOHUP_CLOSED, stdout=None, stderr=None) as server:
        server.popen.send_signal(signal.SIGHUP)
        assert server.client.get("/health").json() == {"status": "ok"}
        assert server.client.get("/ready").status_code == 200
        for number in (1, 2):
            if Path("/proc/self/fd").exists():
                assert os.readlink(f"/proc/{server.popen.pid}/fd/{number}") == os.devnull
        server.end()


def test_a_server_that_gives_up_leaves_though_nobody_reads_why(tmp_path: Path) -> None:
    """Guards restarts: the sentence about the end must not be what keeps the process."""
    program = (sys.executable, "-c", BROKEN)
    with full_pipe() as end, served(tmp_path, program=program, stdout=end, stderr=end) as server:
        server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4})
        assert server.popen.wait(WAIT_S) == 1


LONG = {
    "prompt": "a",
    "max_tokens": 1500,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


def test_a_terminal_that_closes_lets_streams_go_on(tmp_path: Path) -> None:
    """Guards callers of a server in a terminal: it drains, as when it is told to stop, though it
    can say so to nobody. The shell and the system tell it of the same end, one after another; and
    they tell every process of the terminal, so that the backend has to outlive it as well."""
    ours, theirs = pty.openpty()
    program = (sys.executable, "-c", IN_TERMINAL, sys.executable, "-c", SLOW_PROGRAM)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with served(tmp_path, "--shutdown-timeout", "100", program=program, **streams) as server:
        os.close(theirs)
        worker = backend_of(server.popen.pid)
        with server.client.stream("POST", "/v1/completions", json=LONG) as stream:
            assert stream.status_code == 200
            lines = lines_of(stream)
            next(lines)
            os.close(ours)
            # Two that are on their way at once would arrive as one.
            wait_until(lambda: server.client.get("/ready").status_code == 503, "it does not drain")
            server.popen.send_signal(signal.SIGHUP)
            os.kill(worker, signal.SIGHUP)
            # The count may be late by a pass.
            made = counted(server, MADE) + 2
            chunks = (chunk for line in lines for chunk in events(f"{line}\n\n"))
            assert any(chunk["usage"]["completion_tokens"] > made for chunk in chunks)
            assert backend_of(server.popen.pid) == worker
            server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(WAIT_S) == 0
