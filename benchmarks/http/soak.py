"""Half an hour of everything: mixed load from many clients, and a fault every ten seconds.

Every call has one end that is known beforehand or a refusal that says when to come back; every
byte of a text is compared. Memory may not creep, and when the load is gone everything else is as
it was at the beginning: files, threads, processes. A line a minute says how it goes.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.http.ledger import settled
from benchmarks.http.paced import program
from benchmarks.http.report import Report
from benchmarks.http.served import Footprint, Served, allow_files, served
from benchmarks.http.soak_faults import FAULTS, LogReader, log_pipe
from benchmarks.http.soak_load import KEYS, Load
from benchmarks.http.wire import Connection

MINUTES = 30.0
FAULT_EVERY_S = 10.0
CLIENTS = 24
CALM_S = 15.0
"""Load without faults, before what everything is compared with is noted."""

CHATS, CHAT_MESSAGES = 8, 30_000
WARM_SHARE, WARM_MINUTES_MAX = 1 / 3, 5.0
SLOPE_MIB_MAX = 0.5
SLOPE_MINUTES_MIN = 5.0
"""A slope over less than this is noise."""

LOOK_S = 5.0
IDLE_S_MAX = 60.0
TICK_MS, TOKEN_US = 5.0, 20.0
FLAGS = (
    *("--backend", "fake", "--max-num-seqs", "32", "--kv-tokens", "16384"),
    *("--max-num-queued-reqs", "256", "--policy", "priority"),
)
REASONS = ("stop", "length", "abort", "error")


def slope_per_minute(samples: Sequence[tuple[float, float]]) -> float:
    """How fast a value grows, by least squares; samples are seconds and values."""
    if len(samples) < 2:
        return 0.0
    mean_s = sum(at_s for at_s, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / len(samples)
    above = sum((at_s - mean_s) * (value - mean) for at_s, value in samples)
    below = sum((at_s - mean_s) ** 2 for at_s, _ in samples)
    return 60.0 * above / below if below else 0.0


def soak(report: Report) -> None:
    """Mixed load, a fault every ten seconds: all accounted for, nothing creeps, nothing stays."""
    allow_files()
    with tempfile.TemporaryDirectory() as folder, log_pipe() as (pipe, log):
        file = Path(folder) / "keys.yaml"
        entries = "".join(f"  - {{name: {key[4:]}, key: {key}}}\n" for key in KEYS)
        file.write_text(f"keys:\n{entries}")
        file.chmod(0o600)
        flags = (*FLAGS, "--api-key-file", str(file))
        with served(*flags, program=program(TICK_MS, TOKEN_US), errors=pipe) as server:
            asyncio.run(_soak(report, server, log))
        report.say(f"{log.lines} lines of log were read")
        report.check("no traceback in the log", not log.tracebacks)


async def _soak(report: Report, server: Served, log: LogReader) -> None:
    minutes = report.options.minutes or MINUTES
    calm = await _loaded(server, CALM_S)
    await _long_chats(server)
    await server.idle_s(IDLE_S_MAX, KEYS[0])
    before = server.footprint()
    report.say(f"at rest after {calm.ends['begun']} calls without faults: {before}")
    load, done = Load(server.port), Counter[str]()
    samples: list[tuple[float, float]] = []
    clients = [asyncio.create_task(load.client(100 + number)) for number in range(CLIENTS)]
    faults = asyncio.create_task(_break(server, log, minutes * 60, done))
    await _watch(report, server, load, done, minutes, samples)
    await faults
    load.is_over = True
    await asyncio.gather(*clients)
    idle_s = await server.idle_s(IDLE_S_MAX, KEYS[0])
    after = await settled(server, before)
    report.say(f"at rest {idle_s:.1f} s after the last call: {after}")
    _judge_load(report, [calm, load], done, await server.metrics(KEYS[0]))
    _judge_rest(report, before, after, samples, minutes)


async def _loaded(server: Served, seconds: float) -> Load:
    load = Load(server.port)
    clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
    await asyncio.sleep(seconds)
    load.is_over = True
    await asyncio.gather(*clients)
    return load


async def _long_chats(server: Served) -> None:
    """So many at once that the second process for chat templates is there from now on."""
    long = [{"role": "user", "content": "x<"}] * CHAT_MESSAGES
    connections = [await Connection.open(server.port, KEYS[at % 2]) for at in range(CHATS)]
    asked = (each.post("/v1/chat/completions", {"messages": long}) for each in connections)
    await asyncio.gather(*asked)
    for each in connections:
        each.close()


async def _break(server: Served, log: LogReader, seconds: float, done: Counter[str]) -> None:
    """A fault every ten seconds, each kind as often as the others, in random order."""
    draw, started_s, left = random.Random(28), time.perf_counter(), list[str]()
    for number in range(int(seconds / FAULT_EVERY_S)):
        await asyncio.sleep(max(0.0, started_s + number * FAULT_EVERY_S - time.perf_counter()))
        left = left or draw.sample(sorted(FAULTS), len(FAULTS))
        name = left.pop()
        await FAULTS[name](server, log)
        done[name] += 1


async def _watch(
    report: Report,
    server: Served,
    load: Load,
    done: Counter[str],
    minutes: float,
    samples: list[tuple[float, float]],
) -> None:
    """Look at the server's memory for so long, and say a line a minute."""
    started_s, told = time.perf_counter(), 0
    while (spent_s := time.perf_counter() - started_s) < minutes * 60:
        now = server.footprint()
        samples.append((spent_s, now.server_mib))
        if spent_s // 60 > told:
            told = int(spent_s // 60)
            ends = ", ".join(f"{name} {count}" for name, count in sorted(load.ends.items()))
            report.say(f"minute {told}: {ends}; {sum(done.values())} faults; {now}")
        await asyncio.sleep(LOOK_S)


def _judge_load(
    report: Report, loads: list[Load], done: Counter[str], told: dict[str, float]
) -> None:
    ends = sum((load.ends for load in loads), Counter[str]())
    faults = [fault for load in loads for fault in load.faults]
    for fault in faults[:10]:
        report.say(f"fault: {fault}")
    begun = ends["begun"]
    report.say(f"calls: {dict(ends)}; faults: {dict(done)}")
    report.figure("calls", begun)
    report.figure("faults", sum(done.values()))
    report.check(
        f"{begun - len(faults)} of {begun} calls accounted for: {ends['well']} well, "
        f"{ends['refused']} refused, {ends['left']} left",
        not faults and ends["well"] + ends["refused"] + ends["left"] == begun,
    )
    ended = [told[f'jitney:requests_ended_total{{reason="{each}"}}'] for each in REASONS]
    accepted = told["jitney:requests_accepted_total"]
    report.check(
        f"the server says so too: {accepted:.0f} accepted, {sum(ended):.0f} ended, "
        f"{ended[-1]:.0f} of them by an error",
        accepted == sum(ended) and ended[-1] == 0,
    )


def _judge_rest(
    report: Report,
    before: Footprint,
    after: Footprint,
    samples: list[tuple[float, float]],
    minutes: float,
) -> None:
    warm_s = 60 * min(WARM_MINUTES_MAX, minutes * WARM_SHARE)
    slope = slope_per_minute([each for each in samples if each[0] >= warm_s])
    report.figure("slope_mib_per_minute", slope)
    report.figure("server_mib_before", before.server_mib)
    report.figure("server_mib_after", after.server_mib)
    if minutes - warm_s / 60 >= SLOPE_MINUTES_MIN:
        report.check(
            f"memory grows by {slope:+.2f} MiB a minute, at most {SLOPE_MIB_MAX:g}",
            slope < SLOPE_MIB_MAX,
        )
    else:
        report.say(f"memory grew by {slope:+.2f} MiB a minute, in too short a time to be a goal")
    report.check(
        f"no more files, threads or processes than before: {after.files}, {after.threads}, "
        f"{after.processes} against {before.files}, {before.threads}, {before.processes}",
        after.files <= before.files
        and after.threads <= before.threads
        and after.processes <= before.processes,
    )
