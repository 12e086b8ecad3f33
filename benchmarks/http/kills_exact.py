"""Kills under a ledger: the fake backend's process dies again and again, and every byte is known.

Clients send one request after the other for as long as there are kills. Each process is killed at
a random moment of its first seconds, often while it is only starting, never just as it appears:
a server whose every start fails gives up, as it should. Nothing may be lost, doubled or changed,
and the server has to have counted what the ledger says.
"""

import asyncio
import bisect
import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

from benchmarks.http.ledger import Account, Crowd, make_cases
from benchmarks.http.paced import program
from benchmarks.http.report import Report
from benchmarks.http.served import Served, served
from benchmarks.load import percentile

CLIENTS = 32
LIFE_S_MAX = 2.0
"""The longest that a process lives, from when it is seen."""

BACK_S_MAX = 5.0
"""Longest outage after one kill. Starts that were killed too make it longer, by their pauses."""

APPEAR_S_MAX = 30.0
END_S_MAX = 60.0
TICK_MS = 10.0
SETTLE_S = 0.1
"""What was sent before a kill has arrived after this."""

CASES_AT_ONCE = 20
FLAGS = ("--backend", "fake", "--max-num-seqs", "16", "--kv-tokens", "8192")


def kills_exact(report: Report, count: int) -> None:
    """The fake backend under 32 clients, killed so many times; every byte is compared."""
    with served(*FLAGS, program=program(TICK_MS, 0.0)) as server:
        asyncio.run(_kills(report, server, count))
        report.check("no traceback in the log", "Traceback" not in server.log())


async def _kills(report: Report, server: Served, count: int) -> None:
    crowd, is_over = Crowd(server.port), asyncio.Event()
    clients = [asyncio.create_task(_client(crowd, number, is_over)) for number in range(CLIENTS)]
    started_s = time.perf_counter()
    killed = await _kill(server, count)
    is_over.set()
    async with asyncio.timeout(END_S_MAX):
        await asyncio.gather(*clients)
    await server.idle_s(END_S_MAX)
    told = await server.metrics()
    gone = outages(killed, crowd.beats)
    faults = [fault for each in crowd.accounts if (fault := each.fault())]
    for fault in faults[:5]:
        report.say(fault[:300])
    losses = told["jitney:backend_losses_total"]
    once = [each.seconds for each in gone if each.kills == 1]
    longest_s = max(each.seconds for each in gone)
    report.say(
        f"{count} kills in {time.perf_counter() - started_s:.0f} s under {len(crowd.accounts)} "
        f"requests; the engine saw {losses:.0f} losses; {len(gone)} times nothing came. After "
        f"one kill, {len(once)} times: {percentile(once, 0.5):.1f} s in the middle, "
        f"{max(once):.1f} s at most; after up to {max(each.kills for each in gone)} kills, of "
        f"which the later ones hit starts: {longest_s:.1f} s at most"
    )
    report.figure("killed", count)
    report.figure("requests", len(crowd.accounts))
    report.figure("back_s_p50", percentile(once, 0.5))
    report.figure("back_s_max", max(once))
    report.figure("back_of_several_s_max", longest_s)
    report.check(
        f"{len(crowd.accounts) - len(faults)} of {len(crowd.accounts)} accounted for, byte by byte",
        not faults,
    )
    wrong = miscounted(crowd.accounts, told)
    report.check(f"the server counted the same{': ' + str(wrong) if wrong else ''}", not wrong)
    report.check(f"tokens come again within {BACK_S_MAX:g} s of a kill", max(once) <= BACK_S_MAX)


def miscounted(accounts: list[Account], told: dict[str, float]) -> dict[str, float]:
    """Counters of the server that differ from the ledger of a run in which all requests ended."""
    finishes = Counter(each.case.finish for each in accounts)
    expected = {
        "jitney:requests_accepted_total": len(accounts),
        'jitney:requests_ended_total{reason="stop"}': finishes["stop"],
        'jitney:requests_ended_total{reason="length"}': finishes["length"],
        'jitney:requests_ended_total{reason="abort"}': 0,
        'jitney:requests_ended_total{reason="error"}': 0,
        "jitney:prompt_tokens_total": sum(each.case.prompt_count for each in accounts),
        "jitney:completion_tokens_total": sum(each.case.completion_count for each in accounts),
        "jitney:requests_running": 0,
        "jitney:requests_waiting": 0,
    }
    return {name: told.get(name, 0.0) for name, want in expected.items() if told.get(name) != want}


async def _client(crowd: Crowd, number: int, is_over: asyncio.Event) -> None:
    seed = 1000 * (number + 1)
    while not is_over.is_set():
        seed += 1
        cases = make_cases(CASES_AT_ONCE, seed)
        while cases and not is_over.is_set():
            await crowd.serve([cases.pop()], [None])


@dataclass(frozen=True, slots=True)
class Outage:
    """A time without tokens, from the first kill in it."""

    seconds: float
    kills: int


def outages(killed: list[float], beats: list[float]) -> list[Outage]:
    """How long nothing came after each kill; kills before anything came again are one outage."""
    kills: dict[float, list[float]] = {}
    beats = sorted(beats)
    for at_s in sorted(killed):
        place = bisect.bisect_left(beats, at_s + SETTLE_S)
        if place < len(beats):
            kills.setdefault(beats[place], []).append(at_s)
    return [Outage(end_s - at[0], len(at)) for end_s, at in kills.items()]


async def _kill(server: Served, count: int) -> list[float]:
    """Kill the backend's process so many times, each process once; when that was."""
    generator, killed = random.Random(11), dict[int, float]()
    for _ in range(count):
        async with asyncio.timeout(APPEAR_S_MAX):
            while (pid := server.worker()) is None or pid in killed:  # noqa: ASYNC110, no event
                await asyncio.sleep(0.01)
        await asyncio.sleep(generator.uniform(0.0, LIFE_S_MAX))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed[pid] = time.perf_counter()
    return list(killed.values())
