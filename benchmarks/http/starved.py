"""Too little of the machine: busy loops on the server's cores, and then too little memory.

With twice as many busy loops as cores everything is slower, and every answer is right to the byte.
With little memory above what it has, the server is given more than it can hold: each call gets an
end, refusals among them, the process lives, and when there is memory again all is well. The
limit is a control group where one may be made, and one on the address space elsewhere.
"""

import asyncio
import contextlib
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.busy import busy_loops
from benchmarks.http.hostile import confine
from benchmarks.http.ledger import Crowd, make_cases
from benchmarks.http.paced import program
from benchmarks.http.report import Report
from benchmarks.http.served import Served, allow_files, is_alive, served
from benchmarks.http.wire import Connection, Json

LOOPS_PER_CORE = 2
CLIENTS, REQUESTS = 60, 600
ROOM_MIB = 32
"""Memory that the server may take beyond what it has: less than a few large answers."""

HUNGRY, HUNGRY_ROUNDS = 48, 2
SECONDS = 120.0
TICK_MS = 5.0
FLAGS = ("--backend", "fake", "--max-num-seqs", "64", "--kv-tokens", "262144")
PATH = "/v1/completions"
ANSWERS = frozenset({200, 400, 413, 429, 503})
RESET = "reset"
"""Without memory for what comes in, a connection cannot be answered; its client sees its end."""


def starved(report: Report) -> None:
    """Four busy loops on two cores, and a limit on memory: slower, and nothing is lost."""
    allow_files()
    limit_s = report.options.seconds or SECONDS
    with served(*FLAGS, program=program(TICK_MS, 0.0)) as server:
        asyncio.run(_cores(report, server, limit_s))
        report.check("cores: no traceback in the log", "Traceback" not in server.log())
    with served(*FLAGS, program=program(TICK_MS, 0.0)) as server:
        asyncio.run(_memory(report, server, limit_s))
        report.say(f"memory: the log has {server.log().count('Traceback')} tracebacks")


async def _cores(report: Report, server: Served, limit_s: float) -> None:
    loops = LOOPS_PER_CORE * len(os.sched_getaffinity(0))
    calm_s, calm_wrong = await _ledger(server, seed=1, limit_s=limit_s)
    with busy_loops(loops):
        slow_s, slow_wrong = await _ledger(server, seed=2, limit_s=limit_s)
    report.say(
        f"cores: {REQUESTS} requests over {CLIENTS} streams in {calm_s:.1f} s, and in "
        f"{slow_s:.1f} s beside {loops} busy loops"
    )
    for fault in (calm_wrong + slow_wrong)[:5]:
        report.say(fault[:300])
    report.figure("calm_s", calm_s)
    report.figure("starved_s", slow_s)
    report.check(
        f"cores: {2 * REQUESTS - len(calm_wrong + slow_wrong)} of {2 * REQUESTS} accounted for",
        not calm_wrong and not slow_wrong,
    )


async def _memory(report: Report, server: Served, limit_s: float) -> None:
    _, wrong = await _ledger(server, seed=3, limit_s=limit_s)
    worker = server.worker()
    assert worker is not None
    with limited(server.process.pid, ROOM_MIB) as how:
        ends: Counter[str] = Counter()
        for _ in range(HUNGRY_ROUNDS):
            calls = (_hungry(server, number, limit_s) for number in range(HUNGRY))
            ends.update(await asyncio.gather(*calls))
    _, wrong_after = await _ledger(server, seed=4, limit_s=limit_s)
    report.say(f"memory: {ROOM_MIB} MiB by {how}: {dict(ends)}; then {server.footprint()}")
    for fault in (wrong + wrong_after)[:5]:
        report.say(fault[:300])
    silent = {end: count for end, count in ends.items() if not _is_answer(end)}
    report.check(
        f"memory: each of {HUNGRY * HUNGRY_ROUNDS} calls has an end: 200, a refusal, or a reset"
        f"{'; ' + str(silent) if silent else ''}",
        not silent,
    )
    report.check(
        "memory: the server lives, and so does its backend",
        server.process.poll() is None and is_alive(worker),
    )
    report.check(f"memory: the next {REQUESTS} are right", not wrong and not wrong_after)


def _is_answer(end: str) -> bool:
    return end == RESET or (end.isdigit() and int(end) in ANSWERS)


async def _ledger(server: Served, seed: int, limit_s: float) -> tuple[float, list[str]]:
    """Seconds for a small ledger, and what is wrong with it."""
    crowd, cases = Crowd(server.port), make_cases(REQUESTS, seed)
    started_s = time.perf_counter()
    shares = [cases[client::CLIENTS] for client in range(CLIENTS)]
    clients = (crowd.serve(own, [None] * len(own)) for own in shares)
    with contextlib.suppress(TimeoutError):  # who has no answer by then has a fault below
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*clients)
    faults = [f"{each.case.name}: {fault}" for each in crowd.accounts if (fault := each.fault())]
    missing = len(cases) - len(crowd.accounts)
    faults += [f"{missing} requests were not sent in {limit_s:g} s"] if missing else []
    return time.perf_counter() - started_s, faults


async def _hungry(server: Served, number: int, limit_s: float) -> str:
    """Ask for something large: its status, or what happened in place of one."""
    large: list[Json] = [
        {"prompt": "a", "max_tokens": 60, "logprobs": 20},
        {"prompt": [97 + number, *range(97, 123)] * 100, "max_tokens": 8, "n": 4},
        {"prompt": "b" * 3_000_000, "max_tokens": 8},
        {"prompt": [f"{number} {each} " + "c" * 500 for each in range(32)], "max_tokens": 8},
    ]
    try:
        connection = await Connection.open(server.port)
        try:
            body = {**large[number % len(large)], "ignore_eos": True, "temperature": 1.0}
            async with asyncio.timeout(limit_s):
                return str((await connection.post(PATH, body)).status)
        finally:
            connection.close()
    except TimeoutError:
        return f"no answer within {limit_s:g} s"
    except ConnectionError:
        return RESET
    except (OSError, EOFError, ValueError) as error:
        return type(error).__name__


@contextlib.contextmanager
def limited(pid: int, room_mib: int) -> Iterator[str]:
    """A process that may take so much more memory than it has; how that was done, in words."""
    if confine.missing() is None:
        with confine.confined([pid], room_mib):
            yield "a control group"
        return
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    most = _size_bytes(pid) + (room_mib << 20)
    resource.prlimit(pid, resource.RLIMIT_AS, (most, before[1]))
    try:
        yield "a limit on its address space"
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)


def _size_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()
