"""Servers of others are started, refused, stopped, and never outlive whoever started them."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from jitney.errors import SetupError
from jitney_lab.bench.peers.server_process import running_server

START_S = 60.0
END_S = 60.0

SERVER = """
import http.server, subprocess, sys
held = open(sys.argv[2], "wb")
if len(sys.argv) > 3:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=held)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
class Server(http.server.HTTPServer):
    allow_reuse_port = True
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""Holds a pipe open while it lives. With a third word it ignores SIGTERM and has a child."""

STARTER = """
import sys
from jitney_lab.bench.peers.server_process import running_server
with running_server(sys.argv[2:], int(sys.argv[1])) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A port that stays ours: the server shares it, and nobody else can take it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Life:
    """Tells by a named pipe whether anybody who opened it still lives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "life"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def has_ended(self, wait_s: float = END_S) -> bool:
        """Whether all holders end within this time."""
        return bool(select.select([self._fd], [], [], wait_s)[0]) and not os.read(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path)
    yield made
    made.close()


def command(port: int, life: Life, *more: str) -> list[str]:
    return [sys.executable, "-c", SERVER, str(port), str(life.path), *more]


def test_a_server_is_started_and_stopped(port: int, life: Life) -> None:
    with running_server(command(port, life), port, start_s=START_S) as address:
        assert (
            httpx.get(f"{address}/v1/models", trust_env=False, timeout=START_S).status_code == 200
        )
        assert not life.has_ended(0.0)
    assert life.has_ended()


def test_a_failure_of_the_caller_ends_the_server_and_its_children(port: int, life: Life) -> None:
    with (
        pytest.raises(TimeoutError, match="mine"),
        running_server(command(port, life, "stubborn"), port, start_s=START_S),
    ):
        raise TimeoutError("mine")
    assert life.has_ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_when_its_starter_is_killed(
    port: int, life: Life, number: signal.Signals
) -> None:
    words = [sys.executable, "-P", "-c", STARTER, str(port), *command(port, life, "stubborn")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        guard = threading.Timer(START_S, starter.kill)
        guard.start()
        try:
            assert starter.stdout.readline().startswith(b"http://")
        finally:
            guard.cancel()
            starter.send_signal(number)
    assert life.has_ended()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((sys.executable, "-c", "raise SystemExit('no such model')"), "no such model"),
        (("/nowhere/llama-server",), "No such file"),
    ],
)
def test_a_server_that_does_not_start_says_why(
    port: int, words: tuple[str, ...], reason: str
) -> None:
    with (
        pytest.raises(SetupError, match=f"did not start: .*{reason}"),
        running_server(words, port, start_s=START_S),
    ):
        raise AssertionError("It did not start.")


def test_a_server_that_never_listens_is_given_up(port: int, life: Life) -> None:
    words = [sys.executable, "-c", "import sys, time; open(sys.argv[1], 'wb'); time.sleep(600)"]
    with (
        pytest.raises(SetupError, match="did not start"),
        running_server([*words, str(life.path)], port, start_s=0.5),
    ):
        raise AssertionError("It did not start.")
