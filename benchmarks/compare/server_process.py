"""A server of another system in a process of its own, on a free port of this machine.

It never outlives this process: `group_keeper` ends it when we end in any way.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from jitney.config import environment
from jitney.errors import SetupError

FOLDER = Path(__file__).resolve().parent
HOST = "127.0.0.1"
START_S = 300.0
STOP_S = 10.0
KILL_S = 30.0
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
    command: Sequence[str],
    port: int,
    variables: Mapping[str, str] | None = None,
    *,
    start_s: float = START_S,
) -> Iterator[str]:
    """Start a server, wait until it lists its models, and stop it at the end; its address.

    Raises SetupError with the end of its log if it does not start. When the caller fails or is
    interrupted, the server is killed at once.
    """
    address = f"http://{HOST}:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*python_file("group_keeper"), *command],
            # Never written to: it closes when we end, and then the server is killed.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**environment(), **(variables or {})},
            start_new_session=True,
        )
        grace_s = 0.0
        try:
            if not _is_up(process, address, start_s):
                log.seek(0)
                text = log.read().decode("utf-8", "replace")[-LOG_CHARACTERS:].strip()
                reason = text or "it wrote no reason"
                raise SetupError(f"{Path(command[0]).name} did not start: {reason}")
            yield address
            grace_s = STOP_S
        finally:
            _stop(process, grace_s)


def python_file(name: str) -> list[str]:
    """The beginning of a command that runs a file beside this one. It imports nothing of ours."""
    return [sys.executable, "-P", str(FOLDER / f"{name}.py")]


def _is_up(process: subprocess.Popen[bytes], address: str, start_s: float) -> bool:
    """Wait until the server lists its models; false if it ends or takes too long."""
    until = time.monotonic() + start_s
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{address}/v1/models", timeout=5, trust_env=False).status_code == 200:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(POLL_S)
    return False


def _stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask the server to end, and kill all of its group after `grace_s`."""
    assert process.stdin is not None, "It was started with a pipe"
    if grace_s and process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    process.stdin.close()
    process.wait(KILL_S)
