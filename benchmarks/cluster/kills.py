"""`python -m benchmarks.cluster.kills`: machines die under streams whose text is known.

`jitney serve` runs over replicas, each on a Ray node of its own. Streams are started one after the
other, and every few seconds the oldest replica is killed with SIGKILL, or the whole node that it is
on, in turn; a new node comes in its place. With the fake backend a call comes in turn, too, whose
text ends the backend that tokenises it; it gets an error, and no other replica is asked. Every
stream has to be complete, byte for byte, and with the right usage. With `--action` nothing is
killed: the replicas are updated one after the other (`update`), become three and then one again
because somebody says so (`scale`), or because of the load (`autoscale`), and no stream may fail.

    python -m benchmarks.cluster.kills
    python -m benchmarks.cluster.kills --streams 12 --at-once 6 --kills 2
    python -m benchmarks.cluster.kills --model smollm2
    python -m benchmarks.cluster.kills --action update

The gap of a moved stream is its longest time without an event. It has the time until the loss is
noticed, until another replica has taken the stream, and until that one has computed all its tokens.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
from rich.console import Console

from benchmarks.cluster.fleet import Fleet, Telling, fleet, telling
from benchmarks.cluster.nodes import Replica, opened
from benchmarks.cluster.streams import (
    Crowd,
    asked_case,
    count,
    fake_case,
    known_case,
    moved,
    renamed,
)
from benchmarks.http.ledger import Case
from benchmarks.http.served import missing_here, served
from benchmarks.load import percentile
from jitney.cli.progress_bar import progress_bar
from jitney_lab.bench.report import Result
from tests.deadly_text import DEADLY, deadly_text

NOT_HERE = 2
RUN_S_MAX = 3600.0
APPEAR_S_MAX = 300.0
"""A replica takes a minute to start on a busy machine."""

LOOK_S = 0.1
SHOWN = 5
FLAGS = {
    "fake": (
        *("--backend", "fake", "--max-num-seqs", "64", "--max-num-queued-reqs", "256"),
        *("--kv-tokens", "65536", "--max-model-len", "1024"),
    ),
    # One thread each: replicas on one machine would take the cores from each other.
    "smollm2": (
        *("--batch-invariant", "on", "--dtype", "float32", "--threads", "1"),
        *("--max-num-seqs", "16", "--kv-tokens", "16384", "--max-model-len", "1024"),
    ),
    # What moves is computed in one pass here, and not token by token. Roundings differ after it, by
    # so little that greedy texts are hardly ever others.
    "smollm2-float32": (
        *("--batch-invariant", "off", "--dtype", "float32", "--threads", "1"),
        *("--max-num-seqs", "16", "--kv-tokens", "16384", "--max-model-len", "1024"),
    ),
}
AUTOSCALED = ("--max-replicas", "3", "--max-num-seqs", "16")
MANY, FEW = 48, 2
"""Streams at once that need three replicas of 16 slots, and that need one."""
SIZES = {
    "fake": {"streams": 300, "at_once": 60, "tokens": 240, "kills": 10, "every": 5.0},
    "smollm2": {"streams": 32, "at_once": 8, "tokens": 128, "kills": 4, "every": 10.0},
    "smollm2-float32": {"streams": 32, "at_once": 8, "tokens": 128, "kills": 10, "every": 5.0},
}
"""What is not given on the command line, by model."""

DONE_TO = {
    "replica": "replicas killed",
    "node": "nodes killed",
    "frozen": "nodes frozen",
    "tokenizer": "tokenizers killed",
}
KINDS = {"fake": "replica,node,tokenizer"}
"""What is killed in turn, by model; a replica and a node where nothing else is said."""

DEADLY_S_MAX = 60.0
CHANGES = {"max_num_batched_tokens": 1024}
"""What an update changes: nothing that a text depends on."""

SUBJECTS = ("a lighthouse", "the first train", "two brothers", "a letter", "the sea", "an old map")

Cases = asyncio.Queue[Case | None]


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill, and what was there when it came."""

    kind: str
    at_s: float
    late_s: float
    """How long it had to wait for a replica that can be killed."""
    replicas: int
    streams: int


@dataclass(frozen=True, slots=True)
class Change:
    """One deployment under load."""

    replicas: int
    """As many as were asked for, and are there after it."""
    new: int
    """Of these, not there before."""
    seconds: float


@dataclass(slots=True)
class Run:
    """What a run has found."""

    crowd: Crowd
    kills: list[Kill] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """Of calls whose text killed a tokenizer."""
    tokenizer_deaths: int = 0
    changes: list[Change] = field(default_factory=list)
    seconds: float = 0.0


def make_cases(options: argparse.Namespace) -> list[Case]:
    """A case for each stream; those of a model have no text yet."""
    numbers = range(options.streams)
    if options.model == "fake":
        return [fake_case(number, options.tokens, options.seed) for number in numbers]
    prompts = [
        f"Chapter {number + 1}. A long story about {SUBJECTS[number % len(SUBJECTS)]}.\n\n"
        for number in numbers
    ]
    return [asked_case(number, prompts[number], options.tokens) for number in numbers]


async def known(options: argparse.Namespace, cases: list[Case]) -> list[Case]:
    """The cases with the answers of a single process that has the same settings."""
    with served(*FLAGS[options.model], "--jobs-dir", "none") as single:
        queue: Cases = asyncio.Queue()
        for case in (*cases, None):
            queue.put_nowait(case)
        with _bar("expected texts", len(cases)) as advance:
            crowd = Crowd(single.port, lambda stream: advance())
            await crowd.serve(options.at_once, queue)
    by_name = {each.case.name: known_case(each) for each in crowd.streams}
    return [by_name[case.name] for case in cases]


async def under_kills(options: argparse.Namespace, made: Fleet, cases: list[Case]) -> Run:
    """All streams while replicas and nodes die. Each kill lets some more of them start."""
    queue: Cases = asyncio.Queue()
    with _bar("streams", len(cases)) as advance:
        run = Run(Crowd(made.server.port, lambda stream: advance()))
        began = time.perf_counter()
        serving = asyncio.create_task(run.crowd.serve(options.at_once, queue))
        replacing: list[asyncio.Task[None]] = []
        for number, group in enumerate(portions(cases, options.at_once, options.kills)):
            for case in group:
                queue.put_nowait(case)
            if number == options.kills:
                break
            kind = options.kinds[number % len(options.kinds)]
            due_s = (number + 1) * options.every
            await asyncio.sleep(max(0.0, began + due_s - time.perf_counter()))
            replica, there = await _oldest(made)
            if kind == "tokenizer":
                run.statuses.append(await asyncio.to_thread(_kill_tokenizer, made.server.port))
            else:
                made.nodes.kill(kind, replica)
            at_s = time.perf_counter() - began
            run.kills.append(Kill(kind, at_s, at_s - due_s, there, run.crowd.live))
            if kind in ("node", "frozen"):
                replacing.append(asyncio.create_task(made.nodes.replace(kind, replica)))
        queue.put_nowait(None)
        await serving
    run.seconds = time.perf_counter() - began
    await asyncio.gather(*replacing)
    return run


def _kill_tokenizer(port: int) -> int:
    """The status of a call with a text that ends the backend which tokenises it."""
    url = f"http://127.0.0.1:{port}/v1/completions"
    return httpx.post(url, json={"prompt": DEADLY}, timeout=DEADLY_S_MAX).status_code


def portions(cases: list[Case], at_once: int, kills: int) -> Iterator[list[Case]]:
    """What starts at the beginning, and after each kill; together all of them."""
    yield cases[:at_once]
    rest = cases[at_once:]
    for number in range(kills):
        yield rest[len(rest) * number // kills : len(rest) * (number + 1) // kills]


async def _oldest(made: Fleet) -> tuple[Replica, int]:
    """The oldest replica, which has streams for the longest time, and how many there are."""
    async with asyncio.timeout(APPEAR_S_MAX):
        while not (there := made.nodes.replicas()):  # noqa: ASYNC110, a process has no event
            await asyncio.sleep(LOOK_S)
    return there[0], len(there)


async def under_action(options: argparse.Namespace, made: Fleet, cases: list[Case]) -> Run:
    """All streams, and again for as long as the action takes."""
    queue: Cases = asyncio.Queue(maxsize=1)
    with _bar("streams", None) as advance:
        run = Run(Crowd(made.server.port, lambda stream: advance()))
        began = time.perf_counter()
        serving = asyncio.create_task(run.crowd.serve(options.at_once, queue))
        acting = asyncio.create_task(_act(options, made))
        for number, case in enumerate(itertools.cycle(cases)):
            if acting.done() and number >= len(cases):
                break
            await queue.put(renamed(case, f"{case.name}-{number}"))
        await queue.put(None)
        await serving
        run.changes = await acting
    run.seconds = time.perf_counter() - began
    return run


async def _act(options: argparse.Namespace, made: Fleet) -> list[Change]:
    """Deploy again and again while streams run; each time until the replicas are those wanted."""
    changes = []
    await asyncio.sleep(options.every)
    for count_wanted, settings in ACTIONS[options.action]:
        wanted = count_wanted or options.replicas
        before = {each.pid for each in made.nodes.replicas()}
        began = time.perf_counter()
        await made.deploy(wanted, settings)
        async with asyncio.timeout(APPEAR_S_MAX):
            # Those that leave end their streams first.
            while len(there := made.nodes.replicas()) != wanted:  # noqa: ASYNC110, no event
                await asyncio.sleep(LOOK_S)
        new = sum(each.pid not in before for each in there)
        changes.append(Change(wanted, new, time.perf_counter() - began))
        await asyncio.sleep(options.every)
    return changes


async def under_load(options: argparse.Namespace, made: Fleet, cases: list[Case]) -> Run:
    """Many streams until there are three replicas, then few until one is left: Serve decides."""
    numbers = itertools.count()
    with _bar("streams", None) as advance:
        run = Run(Crowd(made.server.port, lambda stream: advance()))
        began = time.perf_counter()
        for at_once, wanted in ((options.at_once, 3), (FEW, 1)):
            before = {each.pid for each in made.nodes.replicas()}
            started = time.perf_counter()
            queue: Cases = asyncio.Queue(maxsize=1)
            serving = asyncio.create_task(run.crowd.serve(at_once, queue))
            async with asyncio.timeout(APPEAR_S_MAX):
                while len(there := made.nodes.replicas()) != wanted:
                    number = next(numbers)
                    case = cases[number % len(cases)]
                    await queue.put(renamed(case, f"{case.name}-{number}"))
            new = sum(each.pid not in before for each in there)
            run.changes.append(Change(wanted, new, time.perf_counter() - started))
            await queue.put(None)
            await serving
    run.seconds = time.perf_counter() - began
    return run


ACTIONS: dict[str, tuple[tuple[int, dict[str, int]], ...]] = {
    "update": ((0, CHANGES), (0, {})),
    "scale": ((3, {}), (1, {})),
}
"""Deployments one after the other: replicas, where 0 is as many as there are, and changes."""

WORK = {
    "kill": under_kills,
    "update": under_action,
    "scale": under_action,
    "autoscale": under_load,
}


def tell(options: argparse.Namespace, told: Telling, run: Run, log: str) -> None:
    """The table, the figures and the goals."""
    streams, found = run.crowd.streams, count(run.crowd.streams)
    went = moved(streams, log)
    gaps = [each.gap_s for each in went]
    names = {each.case.name for each in went}
    calm = [each.gap_s for each in streams if each.case.name not in names and each.beats]
    rows = [
        ("streams", f"{found.streams} in {run.seconds:.0f} s, {options.at_once} at once"),
        ("complete", f"{found.complete}"),
        ("equal, byte for byte", f"{found.equal}"),
        ("usage right", f"{found.usage_right}"),
        ("moved", f"{len(went)}"),
        ("longest gap of a moved one", _spread(gaps)),
        ("longest gap of the others", _spread(calm)),
    ]
    kinds = [each.kind for each in run.kills]
    rows += [(DONE_TO[kind], f"{kinds.count(kind)}") for kind in dict.fromkeys(kinds)]
    faults = [f"{each.case.name}: {fault[:300]}" for each in streams if (fault := each.fault())]
    told.result = Result(
        name=f"cluster {options.action}",
        title=f"{options.model}, {options.replicas} replicas, {options.nodes} nodes",
        columns=("what", "found"),
        rows=tuple(rows),
        notes=(*map(_line, run.kills), *map(_changed, run.changes), *faults[:SHOWN]),
        figures={
            **asdict(found),
            "model": options.model,
            "seconds": run.seconds,
            "moved": len(went),
            "moved_gap_s": _figures(gaps),
            "calm_gap_s": _figures(calm),
            "kills": [asdict(each) for each in run.kills],
            "changes": [asdict(each) for each in run.changes],
        },
    )
    told.check(f"{found.faultless} of {found.streams} without a fault", not faults)
    told.check("no traceback in the log", "Traceback" not in log)
    if options.action == "kill":
        told.check(f"{len(run.kills)} kills, and all hit streams", all(_hits(run.kills)))
        told.check(f"{len(went)} streams were moved", bool(went))
        told.check(
            f"deadly calls: {run.statuses}, and {run.tokenizer_deaths} backends ended",
            # Beside a question of somebody else it is asked once more, alone.
            set(run.statuses) <= {500} and run.tokenizer_deaths <= 2 * len(run.statuses),
        )
    if options.action == "update":
        news = [each.new == each.replicas for each in run.changes]
        told.check(f"{len(news)} updates, of every replica", all(news))
    if options.action in ("scale", "autoscale"):
        counts = [(each.replicas, each.new) for each in run.changes]
        told.check("replicas stay, and others come and go", counts == [(3, 2), (1, 0)])


def _hits(kills: list[Kill]) -> list[bool]:
    return [each.streams > 0 for each in kills]


def _line(kill: Kill) -> str:
    return (
        f"{kill.at_s:.1f} s ({kill.late_s:.1f} s late): {kill.kind}, "
        f"of {kill.replicas} replicas, under {kill.streams} streams"
    )


def _changed(change: Change) -> str:
    return f"{change.replicas} replicas after {change.seconds:.0f} s, {change.new} of them new"


def _spread(seconds: list[float]) -> str:
    found = _figures(seconds)
    return ", ".join(f"{name} {each:.2f} s" for name, each in found.items()) or "none"


def _figures(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {
        "p50": percentile(seconds, 0.5),
        "p95": percentile(seconds, 0.95),
        "max": max(seconds),
    }


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    with progress_bar(Console(stderr=True)) as bar:
        line = bar.add_task(what, total=total)
        yield lambda: bar.advance(line)


async def _limited(run: Awaitable[Run]) -> Run:
    async with asyncio.timeout(RUN_S_MAX):
        return await run


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options, with the sizes of the model where none were given."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=tuple(FLAGS), default="fake")
    parser.add_argument("--action", choices=tuple(WORK), default="kill")
    parser.add_argument("--nodes", type=int, default=3, help="beside the head (3)")
    parser.add_argument("--replicas", type=int, help="one on each node (3; 1 to scale)")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--tokens", type=int, help="of each answer")
    parser.add_argument("--tick-ms", type=float, default=50.0, help="of the fake backend (50)")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--every", type=float, help="seconds between kills")
    parser.add_argument("--kinds", help=f"in turn: {', '.join(DONE_TO)}")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    scales = options.action in ("scale", "autoscale")
    if options.action == "autoscale" and options.at_once is None:
        options.at_once = MANY
    for name, size in SIZES[options.model].items():
        if getattr(options, name) is None:
            setattr(options, name, size)
    kinds = options.kinds or KINDS.get(options.model, "replica,node")
    options.kinds = kinds.split(",")
    if options.replicas is None:
        options.replicas = 1 if scales else min(3, options.nodes)
    if not set(options.kinds) <= set(DONE_TO):
        parser.error(f"--kinds is {kinds}; there are {', '.join(DONE_TO)}")
    if "tokenizer" in options.kinds and options.model != "fake":
        parser.error(f"No text is known that kills the tokenizer of {options.model}; see --kinds")
    return options


def main(arguments: list[str]) -> int:
    """Run it; 1 if a goal was missed."""
    options = parse(arguments)
    missing = missing_here()
    if missing is not None:
        print(missing)
        return NOT_HERE
    costs = {"tick_s": options.tick_ms / 1e3, "sleeps": True, "eos_period": 0}
    cases = make_cases(options)
    if options.model != "fake":
        cases = asyncio.run(known(options, cases))
    with (
        telling(options.seed) as told,
        tempfile.TemporaryDirectory() as folder,
        deadly_text(Path(folder)) as deaths,
        opened(options.nodes) as nodes,
    ):
        flags = FLAGS[options.model] + (AUTOSCALED if options.action == "autoscale" else ())
        with fleet(nodes, options.replicas, *flags, costs=costs) as made:
            run = asyncio.run(_limited(WORK[options.action](options, made, cases)))
            run.tokenizer_deaths = deaths.count
            log = made.server.log()
        tell(options, told, run, log)
    return int(bool(told.missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
