"""Attacks by the machine: signals, full disks, unread logs, too little memory, no free core."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.http.hostile.attack import Attack, Bounds, Setup, Target, crowd, now
from benchmarks.http.hostile.bodies import json_10mb
from benchmarks.http.hostile.confine import missing as cgroup_missing
from benchmarks.http.hostile.processes import sandbox_of, worker_of
from benchmarks.http.wire import HOST

STOP_S = 2.0
HUNG_S_MAX = 40.0
"""A batch of a few tokens that takes longer than this is stuck, on any machine."""

RESTART_MS = 5000.0
LOOK_S = 0.05
MEMORY_MORE_MIB = 300
_TELL_S_MAX = 30.0


async def log_lines(target: Target) -> None:
    """Answers, each of which is a line in the log."""
    await crowd(4, lambda number: target.ask("GET /health", key=False), times=500)


async def worker_killed(target: Target) -> None:
    """kill -9 of the backend's process."""
    worker = worker_of(target.pid)
    if worker is None:
        target.faults.append("the server has no process of its backend")
        return
    os.kill(worker, signal.SIGKILL)
    target.told["killed"] += 1
    if not await _is_replaced(target, worker, RESTART_MS / 1e3):
        target.faults.append("no other process of the backend came")
    # The next attack is to find it at work.
    while await target.ask("GET /health", key=False) != "200":  # noqa: ASYNC110, no event for it
        await asyncio.sleep(LOOK_S)


async def worker_stopped(target: Target) -> None:
    """SIGSTOP of the backend's process for a while."""
    worker = worker_of(target.pid)
    if worker is not None:
        with _stopped(worker):
            await asyncio.sleep(STOP_S)
        target.told["stopped"] += 1


async def worker_hung(target: Target) -> None:
    """SIGSTOP of the backend's process for good: when is it taken for dead?"""
    worker = worker_of(target.pid)
    if worker is None:
        return
    started = now()
    with _stopped(worker):
        if await _is_replaced(target, worker, HUNG_S_MAX):
            target.told[f"replaced after {now() - started:.0f} s"] += 1
        else:
            target.faults.append(f"a hung batch is still waited for after {HUNG_S_MAX:g} s")


async def sandbox_killed(target: Target) -> None:
    """kill -9 of whatever processes there are for templates and constraints, again and again."""
    while True:
        for each in sandbox_of(target.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
                target.told["killed"] += 1
        await asyncio.sleep(1.0)


async def sandbox_stopped(target: Target) -> None:
    """SIGSTOP of the processes for templates and constraints for a while."""
    with contextlib.ExitStack() as stack:
        for each in sandbox_of(target.pid):
            stack.enter_context(_stopped(each))
            target.told["stopped"] += 1
        await asyncio.sleep(STOP_S)


async def two_servers(target: Target) -> None:
    """Two that start at the same time on one port: one must be told, before it loads anything."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    assert port != target.port
    command = [sys.executable, "-m", "jitney", "serve", "--backend", "fake", "--port", str(port)]
    nowhere = asyncio.subprocess.DEVNULL
    both = [
        await asyncio.create_subprocess_exec(*command, stdout=nowhere, stderr=nowhere)
        for _ in range(2)
    ]
    started, loaded = now(), set()
    try:
        while all(each.returncode is None for each in both) and now() - started < _TELL_S_MAX:
            loaded |= {each.pid for each in both if worker_of(each.pid) is not None}
            await asyncio.sleep(0.01)
    finally:
        for each in both:
            with contextlib.suppress(ProcessLookupError):
                each.kill()
    told = [each for each in both if each.returncode not in (None, -signal.SIGKILL)]
    if not told:
        target.faults.append("two servers share a port")
    for each in told:
        target.told[f"exit {each.returncode} after {now() - started:.1f} s"] += 1
        if each.pid in loaded:
            target.faults.append("a second server on a port loads before it is told")


async def busy_loops(target: Target) -> None:
    """Four programs that compute, at the priority of the harness."""
    assert target.port
    loops = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        for _ in range(4)
    ]
    try:
        await asyncio.Event().wait()
    finally:
        for each in loops:
            with contextlib.suppress(ProcessLookupError):
                each.kill()


async def _is_replaced(target: Target, worker: int, limit_s: float) -> bool:
    started = now()
    while now() - started < limit_s:
        if worker_of(target.pid) not in (None, worker):
            return True
        await asyncio.sleep(LOOK_S)
    return False


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def full_missing() -> str | None:
    """Why there is no full disk here, if so."""
    return None if Path("/dev/full").exists() else "there is no /dev/full here to log to"


def cores_missing() -> str | None:
    """Four loops are too many only where there are few cores."""
    count = os.cpu_count() or 1
    return None if count <= 4 else f"{count} cores are more than four loops can fill"


ATTACKS = (
    Attack(
        name="log-unread",
        text="2,000 answers, with the log going to a pipe that nobody reads",
        run=log_lines,
        needs_key=False,
        seconds=8.0,
        setup=Setup(log="unread"),
    ),
    Attack(
        name="disk-full",
        text="2,000 answers, with the log going to a disk without room",
        run=log_lines,
        needs_key=False,
        setup=Setup(log="full"),
        missing=full_missing,
    ),
    Attack(
        name="memory-limit",
        text=f"eight bodies of 10 MB under a cgroup limit of {MEMORY_MORE_MIB} MiB more",
        run=json_10mb,
        setup=Setup(memory_more_mib=MEMORY_MORE_MIB),
        missing=cgroup_missing,
    ),
    Attack(
        name="worker-killed",
        text="kill -9 of the backend's process",
        run=worker_killed,
        needs_key=False,
        seconds=6.0,
        bounds=Bounds(
            gap_ms=RESTART_MS,
            chat_ms=RESTART_MS,
            may_fail=frozenset({"health"}),
            because="another process is started and what ran is computed again",
        ),
    ),
    Attack(
        name="worker-stopped",
        text=f"SIGSTOP of the backend's process for {STOP_S:g} s",
        run=worker_stopped,
        needs_key=False,
        bounds=Bounds(
            gap_ms=STOP_S * 1e3 + 250.0,
            chat_ms=STOP_S * 1e3 + 2000.0,
            because="nothing is computed while nothing runs",
        ),
    ),
    Attack(
        name="worker-hung",
        text="SIGSTOP of the backend's process for good",
        run=worker_hung,
        needs_key=False,
        seconds=HUNG_S_MAX + 5.0,
        bounds=Bounds(
            gap_ms=HUNG_S_MAX * 1e3,
            chat_ms=HUNG_S_MAX * 1e3,
            may_fail=frozenset({"health"}),
            because="bounded by when a batch is taken to be stuck",
        ),
    ),
    Attack(
        name="sandbox-killed",
        text="kill -9 of the processes for templates and constraints, every second",
        run=sandbox_killed,
        needs_key=False,
    ),
    Attack(
        name="sandbox-stopped",
        text=f"SIGSTOP of the processes for templates and constraints for {STOP_S:g} s",
        run=sandbox_stopped,
        needs_key=False,
        bounds=Bounds(
            chat_ms=STOP_S * 1e3 + 2000.0, because="no chat is rendered while nothing runs"
        ),
    ),
    Attack(
        name="two-servers",
        text="two servers that start at once on one port",
        run=two_servers,
        needs_key=False,
        seconds=_TELL_S_MAX,
    ),
    Attack(
        name="busy-loops",
        text="four programs that compute on the same cores",
        run=busy_loops,
        needs_key=False,
        missing=cores_missing,
    ),
)
