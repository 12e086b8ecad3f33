"""`python -m benchmarks.cluster.routing`: our router against two of Ray Serve's, on one load.

The replicas are ours each time; only the class of the router differs. "Power of two" is Serve's
default: the shorter queue of two replicas at random. "Prefix affinity" is that of `ray.serve.llm`,
with its own defaults (`benchmarks.cluster.routers`). Callers come at random moments at a fixed
rate, whatever the server does. A forward pass of the fake backend takes 10 ms and 0.1 ms for each
token, and waits: so a prompt of 1,000 tokens takes a tenth of a second, and no core.

First the prompts begin with one of eight system prompts. All of them fit into the memory of the
fleet, and not into that of one replica. Then they share nothing. Routers take turns, each with new
replicas, and another one is first in every round.

    python -m benchmarks.cluster.routing
    python -m benchmarks.cluster.routing --rounds 1 --requests 40 --replicas 2
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from benchmarks.cluster.fleet import ROUTERS, Fleet, Telling, fleet, telling
from benchmarks.cluster.nodes import opened
from benchmarks.cluster.streams import Crowd, Stream
from benchmarks.http.ledger import Case
from benchmarks.http.served import missing_here
from benchmarks.http.wire import Connection
from benchmarks.load import percentile
from jitney.cli.progress_bar import progress_bar
from jitney_lab.bench.report import Result

NOT_HERE = 2
RUN_S_MAX = 600.0
OURS, DEFAULT, AFFINITY = ROUTERS
BYTES = 256
NOISE = 1.1
"""Times on a shared machine that differ by less are equal."""

LOADS = {"eight system prompts": True, "nothing shared": False}
FLAGS = ("--backend", "fake", "--max-num-seqs", "8", "--max-model-len", "2048")


@dataclass(frozen=True, slots=True)
class Found:
    """What one router did with one load."""

    prompt_tokens: int
    computed_tokens: int
    first_p50_ms: float
    first_p95_ms: float
    failed: int


Rounds = dict[tuple[str, str], list[Found]]
"""By load and router."""


def prompts_of(options: argparse.Namespace, seed: int, *, shared: bool) -> list[list[int]]:
    """Prompts of one length, with or without one of the system prompts in front."""
    generator = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [generator.randrange(BYTES) for _ in range(count)]

    systems = [tokens(options.system_tokens) for _ in range(options.systems)]
    return [
        (generator.choice(systems) if shared else tokens(options.system_tokens))
        + tokens(options.question_tokens)
        for _ in range(options.requests)
    ]


def case_of(name: str, prompt: list[int], token_count: int) -> Case:
    """A stream whose text is not looked at."""
    body = {
        "prompt": prompt,
        "max_tokens": token_count,
        "temperature": 0,
        "request_id": name,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Case(name, body, "", "length", len(prompt), token_count)


async def arrive(
    port: int, cases: list[Case], moments: list[float], ended: Callable[[Stream], None]
) -> list[Stream]:
    """Each case at its moment. Connections are used again when they are free."""
    crowd, free = Crowd(port, ended), list[Connection]()
    began = time.perf_counter()

    async def call(case: Case, moment: float) -> None:
        await asyncio.sleep(max(0.0, began + moment - time.perf_counter()))
        connection = free.pop() if free else await Connection.open(port)
        stream = await crowd.ask(connection, case)
        if stream.trouble is None:
            free.append(connection)
        else:
            connection.close()

    async with asyncio.timeout(RUN_S_MAX):
        await asyncio.gather(*map(call, cases, moments))
    for connection in free:
        connection.close()
    return crowd.streams


def found_of(streams: list[Stream]) -> Found:
    """Tokens that had to be computed, and times to the first token."""
    good = [each for each in streams if each.trouble is None and each.terminals == 1]
    prompt_tokens = sum(each.case.prompt_count for each in good)
    firsts = [each.first_s * 1e3 for each in good] or [float("nan")]
    return Found(
        prompt_tokens,
        prompt_tokens - sum(each.cached_count for each in good),
        percentile(firsts, 0.5),
        percentile(firsts, 0.95),
        len(streams) - len(good),
    )


async def measure(
    options: argparse.Namespace, made: Fleet, number: int, ended: Callable[[Stream], None]
) -> dict[str, Found]:
    """Both loads of one round. Before them each replica has computed a prompt or two."""
    seed = 1000 * options.seed + number
    generator = random.Random(seed)
    warming = prompts_of(options, -seed, shared=False)[: 2 * options.replicas]
    cases = [case_of(f"warm-{at}", each, options.tokens) for at, each in enumerate(warming)]
    await arrive(made.server.port, cases, [0.0] * len(cases), lambda stream: None)
    # The reports of the replicas have come when the load does.
    await asyncio.sleep(options.settle)
    found = {}
    for load, shared in LOADS.items():
        prompts = prompts_of(options, seed, shared=shared)
        cases = [
            case_of(f"{load[0]}-{at}", each, options.tokens) for at, each in enumerate(prompts)
        ]
        moments, at_s = [], 0.0
        for _ in cases:
            at_s += generator.expovariate(options.rate)
            moments.append(at_s)
        found[load] = found_of(await arrive(made.server.port, cases, moments, ended))
    return found


def run(options: argparse.Namespace) -> Rounds:
    """All rounds of all routers."""
    costs = {
        "tick_s": options.tick_ms / 1e3,
        "token_s": options.token_us / 1e6,
        "sleeps": True,
        "eos_period": 0,
    }
    flags = (*FLAGS, "--kv-tokens", str(options.kv_tokens))
    rounds: Rounds = {(load, router): [] for load in LOADS for router in options.routers}
    total = options.rounds * len(options.routers) * len(LOADS) * options.requests
    with progress_bar(Console(stderr=True)) as bar, opened(options.replicas) as nodes:
        line = bar.add_task("requests", total=total)
        for number in range(options.rounds):
            turn = number % len(options.routers)
            for router in (*options.routers[turn:], *options.routers[:turn]):
                bar.update(line, description=f"round {number + 1}, {router}")
                with fleet(nodes, options.replicas, *flags, costs=costs, router=router) as made:
                    found = asyncio.run(
                        measure(options, made, number, lambda stream: bar.advance(line))
                    )
                for load, each in found.items():
                    rounds[load, router].append(each)
    return rounds


def tell(options: argparse.Namespace, told: Telling, rounds: Rounds) -> None:
    """The table, the figures and the goals."""
    told.result = Result(
        name="cluster routing",
        title=f"{options.replicas} replicas, {options.rate:g} requests/s, {options.rounds} rounds",
        columns=(
            "load",
            "router",
            "computed",
            "of the prompts",
            "first p50",
            "first p95",
            "failed",
        ),
        rows=tuple(
            (
                load,
                router,
                _spread([each.computed_tokens for each in found], "{:,.0f}"),
                _spread([each.computed_tokens / each.prompt_tokens for each in found], "{:.2f}"),
                _spread([each.first_p50_ms for each in found], "{:.0f} ms"),
                _spread([each.first_p95_ms for each in found], "{:.0f} ms"),
                f"{sum(each.failed for each in found)}",
            )
            for (load, router), found in rounds.items()
        ),
        notes=("Medians of the rounds, and their range.",),
        figures={
            "load": {name: getattr(options, name) for name in SIZES},
            "found": [
                {
                    "load": load,
                    "router": router,
                    "computed_tokens": [each.computed_tokens for each in found],
                    "prompt_tokens": [each.prompt_tokens for each in found],
                    "first_p50_ms": [each.first_p50_ms for each in found],
                    "first_p95_ms": [each.first_p95_ms for each in found],
                    "failed": [each.failed for each in found],
                }
                for (load, router), found in rounds.items()
            ],
        },
    )
    failed = sum(each.failed for found in rounds.values() for each in found)
    told.check(f"{failed} requests failed", failed == 0)
    if DEFAULT in options.routers and OURS in options.routers:
        _check(told, rounds)


def _check(told: Telling, rounds: Rounds) -> None:
    shared, apart = LOADS

    def median(load: str, router: str, name: str) -> float:
        values: list[float] = [getattr(each, name) for each in rounds[load, router]]
        return statistics.median(values)

    for name in ("computed_tokens", "first_p50_ms", "first_p95_ms"):
        ours, others = median(shared, OURS, name), median(shared, DEFAULT, name)
        told.check(f"{shared}: {name} {ours:.0f}, less than {others:.0f} by default", ours < others)
    for name in ("first_p50_ms", "first_p95_ms"):
        ours, others = median(apart, OURS, name), median(apart, DEFAULT, name)
        told.check(
            f"{apart}: {name} {ours:.0f}, at most {NOISE:g} of {others:.0f} by default",
            ours <= NOISE * others,
        )


def _spread(values: list[float], form: str) -> str:
    low, middle, high = (form.format(each(values)) for each in (min, statistics.median, max))
    return f"{middle} ({low} to {high})"


SIZES: dict[str, tuple[float, str]] = {
    "replicas": (4, "each on a node of its own"),
    "rounds": (3, "of all routers"),
    "requests": (240, "of each load and round"),
    "rate": (12.0, "requests in a second"),
    "systems": (8, "system prompts"),
    "system_tokens": (1000, "of each"),
    "question_tokens": (48, "after it"),
    "tokens": (16, "of an answer"),
    "kv_tokens": (5120, "memory of a replica"),
    "tick_ms": (10.0, "a forward pass"),
    "token_us": (100.0, "each token of it"),
    "settle": (2.5, "seconds between the first prompts and the load"),
    "seed": (1, ""),
}
"""Each is an option, with its default."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, (size, words) in SIZES.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(size), default=size, help=f"{words} ({size:g})")
    parser.add_argument(
        "--routers", default=",".join(ROUTERS), help=f"with commas between ({', '.join(ROUTERS)})"
    )
    options = parser.parse_args(arguments)
    options.routers = options.routers.split(",")
    unknown = set(options.routers) - set(ROUTERS)
    if unknown:
        parser.error(f"no router {min(unknown)!r}; there are {', '.join(ROUTERS)}")
    return options


def main(arguments: list[str]) -> int:
    """Run it; 1 if a goal was missed."""
    options = parse(arguments)
    missing = missing_here()
    if missing is not None:
        print(missing)
        return NOT_HERE
    with telling(options.seed) as told:
        tell(options, told, run(options))
    return int(bool(told.missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
