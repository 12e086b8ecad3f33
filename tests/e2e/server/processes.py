"""`jitney serve` as a process; processes and their memory, from /proc or by ps."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server.harness import WAIT_S, wait_until

PROC = Path("/proc")
ASK_S_MAX = 30.0
_ZOMBIE = "Z"
_THREADS = 17
"""Where the count of threads stands in a process's line, from its state on."""

OURS = (sys.executable, "-m", "jitney")
BROKEN = """
import sys
from jitney.backends.fake.backend import FakeBackend
from jitney.cli.main import run
from jitney.core import limits
from jitney.engine import in_flight

def fail(*given):
    raise MemoryError("no memory is left")

limits.GIVE_UP_S, in_flight.PAUSE_S = 0.0, 0.001
FakeBackend.execute = FakeBackend.reset = fail
sys.argv.append("--no-backend-process")
run()
"""
"""A server whose backend fails, and cannot be started again."""


@dataclass(frozen=True)
class ServedProcess:
    """A server in a process of its own."""

    popen: "subprocess.Popen[str]"
    port: int
    log: Path
    client: httpx.Client

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def is_well(self) -> bool:
        """Whether it serves; asked on a connection of its own."""
        assert self.popen.poll() is None, f"it ended with {self.popen.returncode}"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.address}/health", timeout=WAIT_S).status_code == 200
        return False

    def end(self) -> None:
        """Ask it to stop; it leaves with 0, and so does its backend."""
        workers = children(self.popen.pid)
        self.popen.send_signal(signal.SIGTERM)
        assert self.popen.wait(WAIT_S) == 0
        wait_until(lambda: not any(map(is_alive, workers)), "a child was left behind")


@contextlib.contextmanager
def served(
    tmp_path: Path, *flags: str, program: tuple[str, ...] = OURS, **streams: int | None
) -> Iterator[ServedProcess]:
    """`jitney serve` by this program, from the moment that it says where it is; or that it answers,
    if a test has its output."""
    port, log = _free_port(), tmp_path / "log"
    command = [*program, "serve", "--backend", "fake", "--port", str(port), *flags]
    with log.open("w") as errors:
        options: Any = {"stdout": subprocess.PIPE, "stderr": errors, **streams}
        with (
            # A small pipe is full sooner.
            subprocess.Popen(command, text=True, pipesize=4096, **options) as process,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client,
        ):
            made = ServedProcess(process, port, log, client)
            try:
                if process.stdout is not None:
                    line = process.stdout.readline()
                    assert f":{port}" in line, line + log.read_text()
                else:
                    wait_until(made.is_well, "it does not answer", limit_s=2 * WAIT_S)
                yield made
            finally:
                process.kill()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@dataclass(frozen=True)
class Process:
    """One process as the system lists it; a zombie has ended and was not waited for."""

    pid: int
    parent: int
    is_zombie: bool
    memory_bytes: int


def children(pid: int, proc: Path = PROC) -> list[int]:
    """Processes that this one started and that have not ended."""
    return [each.pid for each in _listed(proc) if each.parent == pid and not each.is_zombie]


def backend_of(server: int) -> int:
    """The process of a server's backend; the others that it has are for its callers' texts."""
    (found,) = (
        each for each in children(server) if "jitney.backends.process.worker" in _command(each)
    )
    return found


def is_alive(pid: int, proc: Path = PROC) -> bool:
    """Whether there is such a process, and it has not ended."""
    return any(not each.is_zombie for each in _listed(proc, pid))


def wait_until_gone(*pids: int) -> bool:
    """Whether all of them have ended, within half a minute: one that is killed takes a moment."""
    pause = threading.Event()
    for _ in range(600):
        if not any(is_alive(pid) for pid in pids):
            return True
        pause.wait(0.05)
    return False


def memory_bytes(pid: int, proc: Path = PROC) -> int:
    """What a process takes of the machine's memory."""
    (found,) = _listed(proc, pid)
    return found.memory_bytes


def _command(pid: int) -> str:
    told = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(pid)],
        capture_output=True,
        text=True,
        timeout=ASK_S_MAX,
        check=False,
    )
    return told.stdout


def _listed(proc: Path, pid: int | None = None) -> Iterator[Process]:
    """The process of this number, if there is one; without a number, all."""
    return _read(proc, pid) if (proc / "self").exists() else _ask(pid)


def _read(proc: Path, pid: int | None) -> Iterator[Process]:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    for folder in proc.glob("[0-9]*") if pid is None else [proc / str(pid)]:
        with contextlib.suppress(OSError):  # it has ended since
            # The name of a program may hold anything, parentheses as well.
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            # Its first thread may have ended before the others, which hold its files open.
            is_zombie = fields[0] == _ZOMBIE and int(fields[_THREADS]) <= 1
            pages = int((folder / "statm").read_text().split()[1])
            yield Process(int(folder.name), int(fields[1]), is_zombie, pages * page_bytes)


def _ask(pid: int | None) -> Iterator[Process]:
    which = ["-A"] if pid is None else ["-p", str(pid)]
    command = ["ps", *which, "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "rss="]
    told = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S_MAX, check=False)
    # Its status is also that of a process which is not there.
    for line in told.stdout.splitlines():
        number, parent, state, kib = line.split()
        yield Process(int(number), int(parent), state.startswith(_ZOMBIE), int(kib) * 1024)
