"""`jitney serve` as a process: what it ends with when its engine gives up, and its open files."""

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.server.harness import WAIT_S, events, read_all, wait_until

SERVE = ("serve", "--backend", "fake", "--port", "0")
BROKEN = """
import sys
from jitney.backends.fake.backend import FakeBackend
from jitney.cli.main import main
from jitney.core import limits
from jitney.engine import in_flight

def fail(*given):
    raise MemoryError("no memory is left")

limits.GIVE_UP_S, in_flight.PAUSE_S = 0.0, 0.001
FakeBackend.execute = FakeBackend.reset = fail
sys.exit(main(sys.argv[1:]))
"""
"""A server whose backend fails, and cannot be started again."""


IMPATIENT = """
import sys
from jitney.cli.main import main
from jitney.server import limits

limits.KEEP_ALIVE_S = 3
limits.HEADER_S_MAX = 600
sys.exit(main(sys.argv[1:]))
"""
"""A server that keeps idle connections for a shorter time; and gives those who connect a longer one
for their first request, since a test has thousands of them to open before it sends any."""

PATIENT = IMPATIENT.replace("limits.KEEP_ALIVE_S = 3\n", "")
"""A server that gives them the longer time only."""

IDLE_COUNT = 2000


@dataclass(frozen=True)
class Process:
    """A server in a process of its own."""

    popen: "subprocess.Popen[str]"
    address: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])


@contextlib.contextmanager
def served(tmp_path: Path, *command: str) -> Iterator[Process]:
    """What this command starts, from the moment that it says where it is."""
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found is not None, line + log.read_text()
            yield Process(process, found[0], log)
        finally:
            process.kill()


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_whose_engine_gave_up_tells_its_callers_and_leaves(
    tmp_path: Path, streams: bool
) -> None:
    """Guards restarts: a process that stays and serves nothing is never started again."""
    command = (sys.executable, "-c", BROKEN, *SERVE, "--no-backend-process")
    with served(tmp_path, *command) as server:
        body = {"prompt": "a", "max_tokens": 4, "stream": streams}
        reply = httpx.post(f"{server.address}/v1/completions", json=body, timeout=WAIT_S)
        told = events(reply.text)[-1] if reply.status_code == 200 else reply.json()
        assert told["error"]["code"] == "engine_stopped"
        assert server.popen.wait(WAIT_S) == 1
    log = server.log.read_text()
    sentences = [line for line in log.splitlines() if line.startswith("jitney: ")]
    assert len(sentences) == 1, log
    assert "so the engine stopped; the last reason was: no memory is left" in sentences[0]
    assert "Traceback" not in log


def limited(limit: str) -> tuple[str, ...]:
    """`jitney serve` under a limit on open files, as a shell sets it."""
    program = (sys.executable, "-c", PATIENT, *SERVE)
    return "sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *program


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_a_server_raises_its_own_limit_on_open_files(tmp_path: Path) -> None:
    """Guards connections: the usual limit of a shell must not end them before our own does."""
    with served(tmp_path, *limited("-Sn 64")) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connect(server.port)) for _ in range(200)]
        for connection in connections:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in connections:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        told = httpx.get(f"{server.address}/metrics", timeout=WAIT_S).text
        assert 'jitney:limit{limit="connections_max"} 8192' in told


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_connections_are_bounded_by_the_files_that_are_allowed(tmp_path: Path) -> None:
    """Guards a server with few files: one too many is told so, and no file is wanted in vain."""
    with served(tmp_path, *limited("-n 100")) as server:
        told = "At most 50 connections"
        wait_until(lambda: told in server.log.read_text(), "it does not say how many")
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(_connect(server.port))
            with _connect(server.port) as late:
                assert b"too_many_connections" in read_all(late)
        wait_until(lambda: _is_well(server), "it does not recover")
        metrics = httpx.get(f"{server.address}/metrics", timeout=WAIT_S).text
        assert 'jitney:limit{limit="connections_max"} 50' in metrics
    assert "Traceback" not in server.log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_row_45_thousands_of_idle_connections(tmp_path: Path) -> None:
    """Guards connections: as many as a crowd keeps open are served, and closed when they rest."""
    with (
        served(tmp_path, sys.executable, "-c", IMPATIENT, *SERVE) as server,
        _many_files(IDLE_COUNT + 200),
        contextlib.ExitStack() as stack,
    ):
        idle = [stack.enter_context(_connect(server.port)) for _ in range(IDLE_COUNT)]
        for connection in idle:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in idle:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        body = {"prompt": "a", "max_tokens": 4}
        reply = httpx.post(f"{server.address}/v1/completions", json=body, timeout=WAIT_S)
        assert reply.status_code == 200
        for connection in idle:
            assert b"HTTP/1.1" not in read_all(connection)
        wait_until(lambda: _open_sockets(server.popen.pid) < 20, "closed connections are kept")
    assert "Traceback" not in server.log.read_text()


@contextlib.contextmanager
def _many_files(count: int) -> Iterator[None]:
    """This process may open as many here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open_sockets(pid: int) -> int:
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed since
            count += os.readlink(each).startswith("socket:")
    return count


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def _is_well(server: Process) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{server.address}/health", timeout=WAIT_S).status_code == 200
    return False
