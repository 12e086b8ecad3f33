"""What a server and its children take, from /proc: memory, files, threads, processes."""

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 0.05
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
_WORKER = b"jitney.backends.process.worker"
_SANDBOX = b"jitney.sandbox.child"


@dataclass(frozen=True, slots=True)
class Taken:
    """At one moment; memory in MiB, the rest over the server and its children."""

    server_mib: float
    children_mib: float
    files: int
    threads: int
    processes: int


def descendants(pid: int) -> list[int]:
    """Every process that it started, and that those did, as far as they live."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found + [each for child in found for each in descendants(child)]


def worker_of(pid: int) -> int | None:
    """The process of a server's backend; none for a moment after it was killed."""
    return next(iter(_running(pid, _WORKER)), None)


def sandbox_of(pid: int) -> list[int]:
    """The processes in which a server works on texts of strangers."""
    return _running(pid, _SANDBOX)


def _running(pid: int, module: bytes) -> list[int]:
    found = []
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            if module in Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
    return found


def taken(pid: int) -> Taken:
    """What a server takes now."""
    children = descendants(pid)
    everyone = [pid, *children]
    return Taken(
        _resident_mib(pid),
        sum(map(_resident_mib, children)),
        sum(_count(each, "fd") for each in everyone),
        sum(_count(each, "task") for each in everyone),
        len(everyone),
    )


class Peak:
    """The most memory that a server and its children took, looked at from a thread of its own."""

    def __init__(self, pid: int) -> None:
        self.server_mib = self.children_mib = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="peak", daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            children_mib = sum(map(_resident_mib, descendants(self._pid)))
            self.server_mib = max(self.server_mib, _resident_mib(self._pid))
            self.children_mib = max(self.children_mib, children_mib)


def _resident_mib(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB
    return 0.0


def _count(pid: int, what: str) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/{what}"))
    return 0
