"""`jitney serve` on a port that is taken, and what becomes of those who come while it loads."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from tests.e2e.server.harness import WAIT_S, read_all
from tests.e2e.server.test_process import _connect

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
    with loading() as server, _connect(server.port) as early:
        early.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        server.let_in()
        assert read_all(early).endswith(b'{"status":"ok"}')
