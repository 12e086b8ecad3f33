"""`jitney serve` with the embedded model, on a free port of this machine, for clients to call."""

import contextlib
import re
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_S_MAX = 300.0
STOP_S_MAX = 40.0
MODEL_NAME = "smollm2"
MODEL_LEN = 2048
_ADDRESS = re.compile(r" at (http://127\.0\.0\.1:[0-9]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, what its model is called, and the key it wants."""

    url: str
    model: str
    key: str


@contextlib.contextmanager
def serving(threads: int, log: Path, *options: str) -> Iterator[Server]:
    """A server for as long as the block lasts; what it says on standard error goes to the log."""
    key = secrets.token_hex(16)
    command = [sys.executable, "-m", "jitney", "serve", "--port", "0"]
    # Batches need a place, and the usual one may be another server's.
    command += ["--jobs-dir", str(log.parent / "jobs")]
    command += ["--threads", str(threads), "--api-key", key, "--shutdown-timeout", "5"]
    command += ["--served-model-name", MODEL_NAME, *options]
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            yield Server(_address(process), MODEL_NAME, key)
            assert process.poll() is None, f"the server ended by itself; see {log}"
        finally:
            process.terminate()
            try:
                status = process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    assert status == 0, f"the server ended with status {status}; see {log}"


def _address(process: "subprocess.Popen[bytes]") -> str:
    """Wait for the line that tells the address."""
    assert process.stdout is not None
    said = b""
    limit = time.monotonic() + START_S_MAX
    while time.monotonic() < limit:
        ready, _, _ = select.select([process.stdout], [], [], 1.0)
        if ready:
            # read1 takes what is there; the line comes in one piece, since it is flushed whole.
            part = process.stdout.read1()  # type: ignore[attr-defined]
            said += part
            found = _ADDRESS.search(said.decode())
            if found is not None:
                return found[1]
            if not part:
                break
    raise AssertionError(f"the server did not start; it said: {said.decode()[-500:]}")
