"""`jitney serve` as a process that a test kills and starts again, over one folder of jobs."""

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from openai import OpenAI

from tests.e2e.server.processes import OURS

START_S = 120.0


@dataclass(frozen=True)
class ServerProcess:
    """A server in a process of its own. Its log is read, so that it never blocks."""

    popen: "subprocess.Popen[str]"
    address: str
    log: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def kill(self) -> None:
        """End it as a loss of power would: nothing is finished or flushed."""
        self.popen.kill()
        self.popen.wait(START_S)

    @contextlib.contextmanager
    def client(self, key: str = "none") -> Iterator[OpenAI]:
        with OpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0, timeout=60) as made:
            yield made


@contextlib.contextmanager
def server_process(
    folder: Path, *flags: str, program: tuple[str, ...] = OURS
) -> Iterator[ServerProcess]:
    """The fake backend, served with its jobs in this folder, until it ends or the test does."""
    command = [*program, "serve", "--backend", "fake", "--port", "0"]
    with subprocess.Popen(
        [*command, "--jobs-dir", str(folder), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        log: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            said = process.stdout.readline()
            found = re.search(r"http://\S+", said)
            if found is None:
                reader.join(START_S)
            assert found is not None, said + "".join(log)
            yield ServerProcess(process, found[0], log)
        finally:
            process.kill()
            # It ends with those that write to it: the server, and those that end with it.
            reader.join(START_S)
