"""`jitney serve` in a process of its own, for one section: started, looked at, ended.

Everything is read from outside: its metrics over HTTP, its memory and files from /proc.
"""

import asyncio
import contextlib
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.http.wire import Connection

START_S_MAX = 120.0
END_S_MAX = 60.0
FILES_WANTED = 8192
FILES_USUAL = 1024
"""What a shell allows the programs that it starts; a server must raise it by itself."""

_ADDRESS = re.compile(rb" at http://[^:]+:(\d+)")
_SAMPLE = re.compile(r"^([^ ]+(?:\{[^}]*\})?) ([^ ]+)$")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory in MiB and open files of the server, and the memory of its backend's process."""

    server_mib: float
    worker_mib: float
    files: int
    threads: int
    processes: int

    def __str__(self) -> str:
        return (
            f"server {self.server_mib:.1f} MiB, {self.files} files, {self.threads} threads, "
            f"{self.processes} processes; "
            f"worker {self.worker_mib:.1f} MiB"
        )


class Served:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: IO[str]) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def children(self) -> list[int]:
        """The processes that it started, as far as they live."""
        return children_of(self.process.pid)

    def tell(self, line: str) -> None:
        """Write a line to its standard input, for a program that reads it."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def worker(self) -> int | None:
        """The process of the backend; none for a moment after it was killed."""
        for pid in self.children:
            with contextlib.suppress(OSError):
                if b"jitney.backends.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def footprint(self) -> Footprint:
        """What it takes at this moment."""
        pid, worker = self.process.pid, self.worker()
        return Footprint(
            resident_mib(pid),
            0.0 if worker is None else resident_mib(worker),
            len(os.listdir(f"/proc/{pid}/fd")),
            len(os.listdir(f"/proc/{pid}/task")),
            1 + len(self.children),
        )

    async def metrics(self, key: str | None = None) -> dict[str, float]:
        """Every sample of /metrics, by its name and labels as they are written."""
        connection = await Connection.open(self.port, key)
        reply = await connection.get("/metrics")
        connection.close()
        found = map(_SAMPLE.match, reply.body.decode().splitlines())
        return {each[1]: float(each[2]) for each in found if each is not None}

    async def idle_s(self, limit_s: float, key: str | None = None) -> float:
        """Seconds until nothing runs and nothing waits. Raises TimeoutError."""
        started = time.perf_counter()
        async with asyncio.timeout(limit_s):
            while True:
                now = await self.metrics(key)
                if now["jitney:requests_running"] == now["jitney:requests_waiting"] == 0:
                    return time.perf_counter() - started
                await asyncio.sleep(0.02)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Its exit code. Raises TimeoutExpired."""
        return await asyncio.to_thread(self.process.wait, END_S_MAX)

    def log(self) -> str:
        """What it wrote to its log so far."""
        self._log.seek(0)
        return self._log.read()


@contextlib.contextmanager
def served(
    *flags: str,
    cores: set[int] | None = None,
    program: Sequence[str] = ("jitney",),
    errors: int | None = None,
    start_s: float = START_S_MAX,
) -> Iterator[Served]:
    """A server with these flags on a free port, kept to these cores; it ends with the block.

    `program` is a module and what it takes before `serve`; `errors` is a file to log to in place
    of our own; a start may take `start_s`.
    """
    command = [sys.executable, "-m", *program, "serve", "--port", "0", *flags]
    with tempfile.TemporaryFile("w+") as log:
        with on_cores(cores), _usual_files():
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log if errors is None else errors,
            )
        try:
            yield Served(process, _port_of(process, log, start_s), log)
        finally:
            _end(process)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def missing_here(proc: Path = Path("/proc")) -> str | None:
    """Why nothing can be measured here, if so."""
    if (proc / "self").exists() and hasattr(os, "sched_setaffinity"):
        return None
    return "These benchmarks read /proc and set cores aside, so they run on Linux only."


def allow_files() -> None:
    """Raise the limit on open files for this process, which has a client at each connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def children_of(pid: int) -> list[int]:
    """The processes that a process started, as far as they live; none if it is gone itself."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    return Path(f"/proc/{pid}").exists()


@contextlib.contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """What is started in here stays on these cores, with all that it starts itself."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _usual_files() -> Iterator[None]:
    """What is started in here has the usual limit on open files, whatever this process has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, FILES_USUAL), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _port_of(process: "subprocess.Popen[bytes]", log: IO[str], start_s: float) -> int:
    """The port that it announces; a start that takes too long is cut short."""
    assert process.stdout is not None
    deadline = time.monotonic() + start_s
    told = b""
    while time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 0.5)[0]:
            told += os.read(process.stdout.fileno(), 4096)
        found = _ADDRESS.search(told)
        if found is not None:
            return int(found[1])
    log.seek(0)
    raise RuntimeError(f"the server did not start: {log.read()[-2000:]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10.0)


def resident_mib(pid: int) -> float:
    """Memory that a process holds; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * _PAGE_KIB / 1024
