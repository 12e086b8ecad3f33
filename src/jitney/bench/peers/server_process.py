"""A server of another system in a process of its own, on a free port of this machine.

Tests: tests/unit/bench/test_compare.py.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from jitney.config import environment
from jitney.errors import SetupError

HOST = "127.0.0.1"
START_S = 300.0
STOP_S = 10.0
POLL_S = 0.2
LOG_CHARACTERS = 400


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_server(
    command: Sequence[str], port: int, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a server, wait until it lists its models, and stop it at the end; its address.

    Raises SetupError with the end of its log if it does not start.
    """
    address = f"http://{HOST}:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment(), **(variables or {})},
            start_new_session=True,
        )
        try:
            if not _is_up(process, address):
                log.seek(0)
                text = log.read().decode("utf-8", "replace")[-LOG_CHARACTERS:].strip()
                raise SetupError(f"{Path(command[0]).name} did not start: {text}")
            yield address
        finally:
            _stop(process)


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-P", "-m", name, *arguments]


def _is_up(process: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until the server lists its models; false if it ends or takes too long."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{address}/v1/models", timeout=5, trust_env=False).status_code == 200:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(POLL_S)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_S)
            break
        except subprocess.TimeoutExpired:
            continue
