"""A Ray with Serve's proxies in a process of its own, for several files of tests: a start of Ray
takes longer than most tests. And a stream of known length, as callers read it."""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI

from tests.machine_for_tests import machine

END_S = 100
STARTS_MAX = 3
"""Ray gives up a start of its own after 30 s, which a busy machine may need."""
UNABLE = "Ray does not start here in its own time: the machine is too busy"
ENVIRONMENT = os.environ | {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_worker_niceness": "0",
}
"""A Ray on this machine has a token; who joins it by its address does not look for one unasked.
Without one Ray would write it to the home of whoever runs the tests. As in a Ray that jitney starts
itself, workers do not stand back: beside busy tests they would hardly run."""


@dataclass(frozen=True)
class RayProcess:
    """A Ray that runs. What was deployed is at `address`; others join it at `ray_address`."""

    address: str
    ray_address: str
    popen: "subprocess.Popen[str]"

    def deploy(self, **settings: object) -> None:
        """Deploy `jitney.cluster:app` with these settings, and wait until it is."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(json.dumps(settings) + "\n")
        self.popen.stdin.flush()
        assert self.popen.stdout.readline() == "deployed\n"

    def close(self) -> None:
        """End it, and see that it ends well."""
        with self.popen as process:
            try:
                process.communicate(timeout=END_S)
                assert process.returncode == 0
            finally:
                process.kill()


class SharedRay:
    """A Ray for all who ask; started for the first, and again after `close`."""

    def __init__(self) -> None:
        self._running: RayProcess | None = None

    def running(self) -> RayProcess:
        """The one Ray. Skips where Ray itself does not start: the machine is starved."""
        for _ in range(STARTS_MAX):
            if self._running is None:
                with machine(alone=True):
                    self._running = _start()
            if self._running is not None:
                return self._running
        pytest.skip(UNABLE)

    def close(self) -> None:
        """End it, if it runs: nobody asks for a while, and it takes a gigabyte."""
        running, self._running = self._running, None
        if running is not None:
            running.close()


def _start() -> RayProcess | None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(__file__).with_name("serve_app_process.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(program), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        text=True,
    )
    assert process.stdout is not None
    said, _, ray_address = process.stdout.readline().strip().partition(" ")
    running = RayProcess(f"http://127.0.0.1:{port}", ray_address, process)
    if said != "started":
        running.close()
        assert said == "unable"
        return None
    return running


def stream(
    address: str, number: int, token_count: int, seen: threading.Semaphore
) -> tuple[str, int]:
    """The text and the counted tokens of one stream. Each chunk is told to `seen`."""
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=100) as client:
        chunks = client.completions.create(
            model="fake",
            prompt=f"prompt {number}",
            max_tokens=token_count,
            temperature=number % 2,
            seed=number,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        text, used = "", 0
        for chunk in chunks:
            text += "".join(choice.text for choice in chunk.choices)
            used = chunk.usage.completion_tokens if chunk.usage is not None else used
            seen.release()
    return text, used
