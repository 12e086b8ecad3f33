"""`jitney serve` as a process: its port while it loads, its open files, and how it gives up."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.server.harness import WAIT_S, events, read_all, wait_until
from tests.e2e.server.processes import BROKEN, served

LOADING = """
import sys
from jitney.cli import serve
from jitney.cli.main import run

def slow(settings, assemble=serve.assemble):
    print("it loads", flush=True)
    sys.stdin.readline()
    return assemble(settings)

def seen(*given, bind=serve.bind):
    listener = bind(*given)
    print(listener.getsockname()[1], flush=True)
    return listener

serve.assemble, serve.bind = slow, seen
run()
"""
"""A server that says its port, and loads its model until it is given a line."""


@dataclass(frozen=True)
class Loading:
    """A server that is about to serve."""

    process: "subprocess.Popen[str]"
    port: int

    def let_in(self) -> None:
        """Let it load."""
        stream = self.process.stdin
        assert stream is not None
        stream.write("\n")
        stream.flush()


@contextlib.contextmanager
def loading(port: int = 0) -> Iterator[Loading]:
    """A server that has its port and loads its model."""
    command = [sys.executable, "-c", LOADING, "serve", "--backend", "fake", "--port", str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            made = Loading(process, int(_line(process.stdout)))
            assert _line(process.stdout) == "it loads\n"
            yield made
        finally:
            process.kill()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def test_a_second_server_learns_that_the_port_is_taken_before_it_loads() -> None:
    """Guards minutes of loading: the first one has the port from the start, served or not."""
    with loading() as first:
        command = [sys.executable, "-c", LOADING, "serve", "--backend", "fake"]
        second = subprocess.run(
            [*command, "--port", str(first.port)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    assert second.returncode == 2
    assert "it loads" not in second.stdout
    assert second.stderr == (
        f"jitney: 127.0.0.1 port {first.port} cannot be listened on: Address already in use; "
        "give another --port.\n"
    )


def test_whoever_comes_while_the_model_is_loaded_is_answered_afterwards() -> None:
    """Guards those who start a server and its clients together."""
    with loading() as server, socket.create_connection(("127.0.0.1", server.port)) as early:
        early.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        server.let_in()
        assert read_all(early).endswith(b'{"status":"ok"}')


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


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_whose_engine_gave_up_tells_its_callers_and_leaves(
    tmp_path: Path, streams: bool
) -> None:
    """Guards restarts: a process that stays and serves nothing is never started again."""
    with served(tmp_path, program=(sys.executable, "-c", BROKEN)) as server:
        body = {"prompt": "a", "max_tokens": 4, "stream": streams}
        reply = server.client.post("/v1/completions", json=body)
        told = events(reply.text)[-1] if reply.status_code == 200 else reply.json()
        assert told["error"]["code"] == "engine_stopped"
        assert server.popen.wait(WAIT_S) == 1
    log = server.log.read_text()
    sentences = [line for line in log.splitlines() if line.startswith("jitney: ")]
    assert len(sentences) == 1, log
    assert "so the engine stopped; the last reason was: no memory is left" in sentences[0]
    assert "Traceback" not in log


def limited(limit: str) -> tuple[str, ...]:
    """`jitney` under a limit on open files, as a shell sets it."""
    return "sh", "-c", f'ulimit {limit} && exec "$@"', "sh", sys.executable, "-c", PATIENT


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_a_server_raises_its_own_limit_on_open_files(tmp_path: Path) -> None:
    """Guards connections: the usual limit of a shell must not end them before our own does."""
    with served(tmp_path, program=limited("-Sn 64")) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(200)]
        for connection in connections:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in connections:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        metrics = server.client.get("/metrics").text
        assert 'jitney:limit{limit="connections_max"} 8192' in metrics


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_connections_are_bounded_by_the_files_that_are_allowed(tmp_path: Path) -> None:
    """Guards a server with few files: one too many is told so, and no file is wanted in vain."""
    with served(tmp_path, program=limited("-n 100")) as server:
        told = "At most 50 connections"
        wait_until(lambda: told in server.log.read_text(), "it does not say how many")
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(server.connect())
            with server.connect() as late:
                assert b"too_many_connections" in read_all(late)
        wait_until(server.is_well, "it does not recover")
        metrics = server.client.get("/metrics").text
        assert 'jitney:limit{limit="connections_max"} 50' in metrics
    assert "Traceback" not in server.log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_row_45_thousands_of_idle_connections(tmp_path: Path) -> None:
    """Guards connections: as many as a crowd keeps open are served, and closed when they rest."""
    with (
        served(tmp_path, program=(sys.executable, "-c", IMPATIENT)) as server,
        _many_files(IDLE_COUNT + 200),
        contextlib.ExitStack() as stack,
    ):
        idle = [stack.enter_context(server.connect()) for _ in range(IDLE_COUNT)]
        for connection in idle:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in idle:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        body = {"prompt": "a", "max_tokens": 4}
        reply = server.client.post("/v1/completions", json=body)
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
