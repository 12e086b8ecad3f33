"""`python -m benchmarks.cluster.cost`: what a cluster costs, and what its ingress can do.

`ratio`: SmolLM2 behind one replica against SmolLM2 in one process, both over HTTP and both there
all the time, in turns: 16 callers, 128 tokens in, 64 out on average. What Ray does while nothing is
asked is a cost of both.

`ingress`: the fake backend at full speed. The ingress has one core; Ray, the replicas and the
callers have the others. Its processor time for each token says what it could do if the others had
more than that, and a sample of its threads says what it spends the time on.

    python -m benchmarks.cluster.cost
    python -m benchmarks.cluster.cost --part ingress --runs 1 --replicas 1
"""

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any  # Any: a JSON value

from rich.console import Console

from benchmarks.cluster.fleet import Fleet, Telling, fleet, telling
from benchmarks.cluster.nodes import opened
from benchmarks.http.cost import (
    FAKE_FLAGS,
    SMOL_FLAGS,
    fake_body,
    http_rate,
    mixed_jobs,
    stream_all,
)
from benchmarks.http.served import missing_here, on_cores, served
from benchmarks.load import Job, spread
from jitney.cli.progress_bar import progress_bar
from jitney_lab.bench.report import Result

NOT_HERE = 2
RATIO_GOAL = 0.85
RUN_S_MAX = 1800.0
STREAMS = 64
STREAM_TOKENS = 500
TOP = 10
FULL = 0.9
"""A core that was busy for more than this had nothing left."""

_TICKS = os.sysconf("SC_CLK_TCK")

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Speed:
    """One run of all streams at full speed."""

    tokens_per_s: float
    events_per_s: float
    ingress_us: float
    """Processor time of the ingress for each token."""
    busy_ingress: float
    busy_others: float
    """Shares of the time in which the cores of each were busy."""


def ratio(options: argparse.Namespace, told: Telling) -> tuple[list[Row], dict[str, object]]:
    """One replica against one process, in turns, there and back."""
    rates: dict[str, list[float]] = {"process": [], "cluster": []}
    with (
        progress_bar(Console(stderr=True)) as bar,
        opened(1) as nodes,
        served(*SMOL_FLAGS, "--jobs-dir", "none") as single,
        fleet(nodes, 1, *SMOL_FLAGS) as made,
    ):
        sides: dict[str, Callable[[list[Job]], float]] = {
            "process": partial(http_rate, single),
            "cluster": partial(http_rate, made.server),
        }
        line = bar.add_task("rounds", total=options.rounds)
        for rate in sides.values():
            rate(mixed_jobs(599))
        for number in range(options.rounds):
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            jobs = mixed_jobs(600 + number)
            found: dict[str, list[float]] = {side: [] for side in sides}
            for side in (*order, *reversed(order)):
                found[side].append(sides[side](jobs))
            for side, each in found.items():
                rates[side].append(statistics.mean(each))
            bar.advance(line)
    ratios = [a / b for a, b in zip(rates["cluster"], rates["process"], strict=True)]
    told.check(
        f"at least {RATIO_GOAL} of one process: {spread(ratios)}",
        statistics.median(ratios) >= RATIO_GOAL,
    )
    rows = [(f"SmolLM2, {side}", f"{spread(each)} tokens/s") for side, each in rates.items()]
    rows.append(("cluster over process", spread(ratios)))
    return rows, {"smollm2_tokens_per_s": rates, "ratio": ratios}


def ingress(options: argparse.Namespace) -> tuple[list[Row], dict[str, object]]:
    """Streamed tokens through an ingress that has one core."""
    cores = sorted(os.sched_getaffinity(0))
    others = set(cores[1:]) or set(cores)
    # What is started in here, and this process itself, stays off the core of the ingress.
    with (
        on_cores(others),
        opened(options.replicas) as nodes,
        fleet(nodes, options.replicas, *FAKE_FLAGS, cores={cores[0]}) as made,
    ):
        speeds, seen = asyncio.run(_fast(options, made, {cores[0]}, others))
    middle = sorted(speeds, key=lambda each: each.tokens_per_s)[len(speeds) // 2]
    rows = [
        ("ingress on one core", f"{spread([each.tokens_per_s for each in speeds])} tokens/s"),
        ("in events", f"{spread([each.events_per_s for each in speeds])} events/s"),
        ("its time for a token", f"{spread([each.ingress_us for each in speeds])} us"),
        ("so its core could do", f"{1e6 / middle.ingress_us:.0f} tokens/s"),
        ("its core was busy", f"{middle.busy_ingress:.0%}"),
        ("the others were busy", f"{middle.busy_others:.0%}"),
        ("bound by", bound_of(middle)),
    ]
    rows += top_rows(seen, "threads")
    rows += top_rows(seen, "packages")
    rows += top_rows(seen, "functions")
    names = ("tokens_per_s", "events_per_s", "ingress_us", "busy_ingress", "busy_others")
    figures = {name: [getattr(each, name) for each in speeds] for name in names}
    return rows, {"ingress": {**figures, "bound_by": bound_of(middle), "sample": seen}}


def bound_of(speed: Speed) -> str:
    """Which side had nothing left."""
    if speed.busy_ingress >= FULL:
        return "the ingress"
    return "replicas and callers" if speed.busy_others >= FULL else "neither: they wait in turn"


def top_rows(seen: dict[str, Any], kind: str) -> list[Row]:
    """The most of a sample, as shares of all that was seen."""
    counted: dict[str, float] = seen[kind]
    whole = sum(counted.values()) or 1.0
    most = sorted(counted.items(), key=lambda each: -each[1])[:TOP]
    singular = kind.removesuffix("s")
    return [(f"{singular} {name}", f"{taken / whole:.1%}") for name, taken in most]


async def _fast(
    options: argparse.Namespace, made: Fleet, own: set[int], others: set[int]
) -> tuple[list[Speed], dict[str, Any]]:
    bodies = [fake_body(number) for number in range(STREAMS)]
    speeds = []
    with progress_bar(Console(stderr=True)) as bar:
        line = bar.add_task("runs", total=options.runs + 1)
        async with asyncio.timeout(RUN_S_MAX):
            await stream_all(made.server, bodies[:8])
            for _ in range(options.runs):
                speeds.append(await _run(made, bodies, own, others))
                bar.advance(line)
            # Looking takes time too, so a sampled run is no measurement.
            whole_s = STREAMS * STREAM_TOKENS / speeds[-1].tokens_per_s
            sampling = asyncio.create_task(made.sample(whole_s))
            await stream_all(made.server, bodies)
            seen = await sampling
            bar.advance(line)
    return speeds, seen


async def _run(made: Fleet, bodies: list[Any], own: set[int], others: set[int]) -> Speed:
    pid = made.server.process.pid
    taken, busy = taken_s(pid), (busy_s(own), busy_s(others))
    events, seconds = await stream_all(made.server, bodies)
    taken = taken_s(pid) - taken
    tokens = STREAMS * STREAM_TOKENS
    return Speed(
        tokens / seconds,
        events / seconds,
        taken / tokens * 1e6,
        (busy_s(own) - busy[0]) / seconds / len(own),
        (busy_s(others) - busy[1]) / seconds / len(others),
    )


def taken_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    # The name of a program may hold anything, parentheses as well.
    parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / _TICKS


def busy_s(cores: set[int], stat: Path = Path("/proc/stat")) -> float:
    """How long these cores have been busy since the start of the machine, taken together."""
    lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
    # After the name: user, nice, system; idle and waiting are left out; interrupts.
    return sum(
        sum(int(each) for each in (*parts[1:4], *parts[6:8])) / _TICKS
        for parts in lines
        if parts[0] in {f"cpu{core}" for core in cores}
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=("ratio", "ingress"), help="one of the two (both)")
    parser.add_argument("--rounds", type=int, default=8, help="of the ratio (8)")
    parser.add_argument("--runs", type=int, default=3, help="at full speed (3)")
    parser.add_argument("--replicas", type=int, default=1, help="at full speed (1)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run it; 1 if a goal was missed."""
    options = parse(arguments)
    missing = missing_here()
    if missing is not None:
        print(missing)
        return NOT_HERE
    rows: list[Row] = []
    figures: dict[str, object] = {}
    with telling(0) as told:
        if options.part != "ingress":
            more, found = ratio(options, told)
            rows, figures = [*rows, *more], {**figures, **found}
        if options.part != "ratio":
            more, found = ingress(options)
            rows, figures = [*rows, *more], {**figures, **found}
        told.result = Result(
            name="cluster cost",
            title="One replica against one process, and the ingress on one core",
            columns=("what", "found"),
            rows=tuple(rows),
            figures=figures,
        )
    return int(bool(told.missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
