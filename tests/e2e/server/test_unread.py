"""`jitney serve` whose log or output nobody reads, cannot be written, or is gone with its terminal.

Each server is a process with streams that the test made; none may wait for them.
"""

import contextlib
import itertools
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.server.harness import WAIT_S, events, lines_of, wait_until
from tests.e2e.server.pace import SLOW_PROGRAM
from tests.e2e.server.processes import BROKEN, OURS, backend_of, children, is_alive

ROUND = 100
ROUNDS_MAX = 40
"""Requests in a round, and how many rounds fill any pipe and what the server keeps of its log."""
START_S = 200.0
NARROW = """
from jitney.cli.main import run
from jitney.server import limits

limits.LOG_BYTES_MAX = 8192
run()
"""
"""A server that keeps less of its log, so that a test fills it sooner."""
PATIENT = NARROW.replace("run()", "limits.LOG_END_S_MAX = 60.0\nrun()")
"""The same; at its end it waits for a reader that may have to wait for its own turn."""
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes standard input the terminal that the process belongs to, whatever ran these tests: under
nohup the signal would be ignored."""
DROPPED = re.compile(r"^jitney:log_lines_dropped_total (\d+)", re.MULTILINE)
TOLD = re.compile(r"WARNING (\d+) lines of the log were dropped")


@dataclass(frozen=True)
class Served:
    """A server, and how to ask it."""

    process: "subprocess.Popen[bytes]"
    client: httpx.Client

    def drop_lines(self, path: str) -> int:
        """Ask until lines of the log are dropped; how many rounds that took."""
        for number in range(1, ROUNDS_MAX + 1):
            for _ in range(ROUND):
                assert self.client.get(path).status_code == 200
            if self.dropped_count() > 0:
                return number
        raise AssertionError("everything is kept")

    def dropped_count(self) -> int:
        found = DROPPED.search(self.client.get("/metrics").text)
        assert found is not None
        return int(found[1])

    def end(self, code: int = 0) -> None:
        """Ask it to stop; it leaves, and so does its backend."""
        workers = children(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S) == code
        wait_until(lambda: not any(map(is_alive, workers)), "a child was left behind")


@contextlib.contextmanager
def served(
    *command: str, stdin: int | None = None, stdout: int | None, stderr: int | None
) -> Iterator[Served]:
    """`jitney serve` by this command, from the moment that it answers."""
    port = _free_port()
    words = [*command, "serve", "--backend", "fake", "--port", str(port)]
    words += ["--shutdown-timeout", "100"]
    with (
        # A small pipe is full sooner.
        subprocess.Popen(
            words, stdin=stdin, stdout=stdout, stderr=stderr, pipesize=4096
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client,
    ):
        made = Served(process, client)
        try:
            wait_until(lambda: _is_well(made), "it does not answer", limit_s=START_S)
            yield made
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _is_well(server: Served) -> bool:
    assert server.process.poll() is None, f"it ended with {server.process.returncode}"
    with contextlib.suppress(httpx.TransportError):
        return server.client.get("/health").status_code == 200
    return False


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


CLOSED = ("sh", "-c", 'exec "$@" >&- 2>&-', "sh", *OURS)


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    """Guards everyone: one unread pipe held the event loop, and with it every stream, /health and
    the signal to stop."""
    with served(sys.executable, "-c", NARROW, stdout=None, stderr=subprocess.PIPE) as server:
        assert server.drop_lines("/health") > 0
        server.end()


def test_what_was_dropped_is_told_when_it_is_read_again() -> None:
    """Guards whoever reads the log later: every line is there, or counted in one about it."""
    with served(sys.executable, "-c", PATIENT, stdout=None, stderr=subprocess.PIPE) as server:
        assert server.dropped_count() == 0
        rounds = server.drop_lines("/version")
        read: list[str] = []
        assert server.process.stderr is not None
        reader = threading.Thread(target=_read_lines, args=(server.process.stderr.fileno(), read))
        reader.start()

        def accounted() -> bool:
            told = [int(found[1]) for found in map(TOLD.search, list(read)) if found]
            shown = [line for line in list(read) if " GET /version " in line]
            # Lines about /metrics may be among those dropped.
            return 0 <= sum(told) + len(shown) - rounds * ROUND <= rounds

        wait_until(accounted, "lines are missing")
        server.client.get("/version", headers={"x-request-id": "after"})
        wait_until(lambda: any("after GET" in line for line in read), "it logs no more")
        server.end()
        reader.join(WAIT_S)
    assert any("Asked to stop" in line for line in read), "an ordinary end writes what waits"


def _read_lines(file: int, lines: list[str]) -> None:
    with open(file, encoding="utf-8", closefd=False) as stream:
        for line in stream:
            lines.append(line)


@pytest.mark.parametrize("stream", [full_pipe, broken_pipe, full_disk])
def test_streams_that_take_nothing_stop_nothing(
    stream: Callable[[], contextlib.AbstractContextManager[int]],
) -> None:
    """Guards a server whose output and log go nowhere: it starts, lives, and ends with 0."""
    with stream() as end, served(*OURS, stdout=end, stderr=end) as server:
        for _ in range(20):
            assert server.client.get("/health").status_code == 200
        if stream is not full_pipe:
            # One is being written while the answer is; and each look is one more.
            looks = itertools.count()
            wait_until(lambda: server.dropped_count() >= 20 + next(looks), "lines are missing")
        server.end()


def test_closed_streams_are_no_others() -> None:
    """Guards connections: a file that is opened next gets the number of a stream that is closed,
    and what is logged would be sent to somebody."""
    with served(*CLOSED, stdout=None, stderr=None) as server:
        assert server.client.get("/health").json() == {"status": "ok"}
        for number in (1, 2):
            if Path("/proc/self/fd").exists():
                assert os.readlink(f"/proc/{server.process.pid}/fd/{number}") == os.devnull
        server.end()


def test_a_server_that_gives_up_leaves_though_nobody_reads_why() -> None:
    """Guards restarts: the sentence about the end must not be what keeps the process."""
    command = (sys.executable, "-c", BROKEN)
    with full_pipe() as end, served(*command, stdout=end, stderr=end) as server:
        server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4})
        assert server.process.wait(WAIT_S) == 1


LONG = {"prompt": "a", "max_tokens": 100, "ignore_eos": True, "stream": True}


def test_a_terminal_that_closes_lets_streams_finish() -> None:
    """Guards callers of a server in a terminal: it drains, as when it is told to stop, though it
    can say so to nobody. The shell and the system tell it of the same end, one after another."""
    ours, theirs = pty.openpty()
    command = (sys.executable, "-c", IN_TERMINAL, sys.executable, "-c", SLOW_PROGRAM)
    with served(*command, stdin=theirs, stdout=theirs, stderr=theirs) as server:
        os.close(theirs)
        with server.client.stream("POST", "/v1/completions", json=LONG) as stream:
            assert stream.status_code == 200
            lines = lines_of(stream)
            next(lines)
            os.close(ours)
            # Two that are on their way at once would arrive as one.
            wait_until(lambda: server.client.get("/ready").status_code == 503, "it does not drain")
            server.process.send_signal(signal.SIGHUP)
            *_, last = events("\n".join(lines).lstrip() + "\n\n")
        assert last == "[DONE]"
        assert server.process.wait(WAIT_S) == 0


def test_the_backend_outlives_a_terminal_as_long_as_it_is_needed() -> None:
    """Guards the drain: every process of a terminal is told of its end, the backend's as well."""
    with served(*OURS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        worker = backend_of(server.process.pid)
        os.kill(worker, signal.SIGHUP)
        reply = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4})
        assert reply.status_code == 200
        assert backend_of(server.process.pid) == worker
        server.end()


def test_under_nohup_a_terminal_that_closes_is_nothing() -> None:
    """Guards `nohup jitney serve &`: whoever has a signal ignored wants it ignored."""
    command = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *OURS)
    with served(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.client.get("/ready").status_code == 200
        server.end()
