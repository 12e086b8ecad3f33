"""`jitney serve` as a process; processes and their memory, from /proc or by ps."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.server.harness import WAIT_S

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
    address: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)


@contextlib.contextmanager
def served(tmp_path: Path, *flags: str, program: tuple[str, ...] = OURS) -> Iterator[ServedProcess]:
    """`jitney serve` by this program, from the moment that it says where it is."""
    command = [*program, "serve", "--backend", "fake", "--port", "0", *flags]
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
            yield ServedProcess(process, found[0], log)
        finally:
            process.kill()


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
