"""One picture for each strategy and each policy: the images of `docs/strategies.md`.

`python -m benchmarks.pictures` runs two small loads on the embedded model and the backend that is
the default here, and writes `docs/images/strategy-*.png` and `policy-*.png`; ten minutes on two
cores, and matplotlib is in `.[bench]`. Every strategy has the same requests at the same moments,
and so has every policy. Of three runs the quickest is drawn. A picture has a bar for each request,
and below it the size of each batch; all of it comes from `engine.observe`.
"""

import argparse
import importlib
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from jitney import LLM, Candidate, Handle, SamplingParams
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import resolve
from jitney.core.request import Priority, Request, RequestId
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine
from jitney.loading.compose import scheduler_settings
from jitney.records import (
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestPreempted,
    TickRecord,
)

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SEED = 14
WAIT_S = 300.0
TOKEN_FIRST, TOKEN_END = 100, 200
"""Prompts are drawn from these: every model has them, and two prompts share next to nothing."""

PACE = FakeSettings(
    slots=32, kv_tokens=32_768, eos_period=0, tick_s=0.012, token_s=0.0004, sleeps=True
)
"""The fake backend is instant by itself; a pass shall take 12 ms and 0.4 ms for each token."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a load, and when it comes."""

    at_s: float
    prompt_count: int
    completion_count: int
    tenant: str = ""
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Setup:
    """What a picture shows: its file, its title, and the settings of the run."""

    name: str
    title: str
    settings: dict[str, object]


class Promises:
    """A policy of one's own: each tenant was promised an answer within so many seconds."""

    def __init__(self) -> None:
        self._within_s = {"team": 1.0, "chat": 3.0, "night": 5.0}

    def rank(self, candidate: Candidate) -> float:
        """Next is the one whose promise ends first."""
        return candidate.arrived_at + self._within_s.get(candidate.tenant, 8.0)


STRATEGIES = (
    Setup("strategy-continuous", "continuous", {"strategy": "continuous"}),
    Setup(
        "strategy-window",
        "continuous, max_wait_ms: 500",
        {"strategy": "continuous", "max_wait_ms": 500},
    ),
    Setup(
        "strategy-static",
        "static, max_wait_ms: 1000",
        {"strategy": "static", "max_wait_ms": 1000},
    ),
    Setup("strategy-full", "static", {"strategy": "static"}),
    Setup("strategy-dynamic", "dynamic", {"strategy": "dynamic"}),
    Setup("strategy-adaptive", "adaptive", {"strategy": "adaptive"}),
)
POLICIES = (
    Setup("policy-fifo", "fifo", {"policy": "fifo"}),
    Setup("policy-priority", "priority", {"policy": "priority"}),
    Setup(
        "policy-no-preemption",
        "priority, enable_preemption: false",
        {"policy": "priority", "enable_preemption": False},
    ),
    Setup("policy-sjf", "sjf", {"policy": "sjf"}),
    Setup("policy-fair", "fair", {"policy": "fair"}),
    Setup("policy-own", "a policy of one's own", {"policy": Promises()}),
)
STRATEGY_PLACES = 6
POLICY_PLACES = 4


def strategy_jobs() -> list[Job]:
    """Few requests, then many, then few again; as many as fill groups of all places."""
    chance, at_s, jobs = random.Random(SEED), 0.0, []
    for count, per_s in ((6, 1.5), (12, 8.0), (6, 1.0)):
        for _ in range(count):
            prompt_count = chance.choice((16, 32, 64, 128))
            jobs.append(Job(at_s, prompt_count, chance.choice((16, 32, 64, 128))))
            at_s += chance.expovariate(per_s)
    assert len(jobs) % STRATEGY_PLACES == 0, "a group that is never full waits for ever"
    return jobs


def policy_jobs() -> list[Job]:
    """Three tenants, each of a class of its own, with short requests and long ones.

    Lengths, classes and what a tenant asks for in all do not go together, so that no two policies
    come to the same order.
    """
    chance = random.Random(SEED)
    night = [_job("night", Priority.LOW, n, 0.02 * n) for n in range(6)]
    chat = [_job("chat", Priority.HIGH, n, 0.5 + 0.05 * n) for n in range(8)]
    chat += [_job("chat", Priority.HIGH, n, chance.uniform(3.0, 6.0)) for n in range(4)]
    team = [_job("team", Priority.NORMAL, n, chance.uniform(0.3, 3.0)) for n in range(6)]
    return sorted([*night, *team, *chat], key=lambda job: job.at_s)


def _job(tenant: str, priority: Priority, number: int, at_s: float) -> Job:
    """Every second one is short."""
    prompt_count, completion_count = (24, 16) if number % 2 else (96, 72)
    return Job(at_s, prompt_count, completion_count, tenant, priority)


@contextmanager
def open_engine(settings: dict[str, object], backend: str) -> Iterator[Engine]:
    """An engine with these settings, closed in the end."""
    if backend != "fake":
        with LLM(None, config=None, backend=backend, **settings) as llm:
            yield llm.engine
        return
    fake = FakeBackend(PACE)
    resolved = resolve({**settings, "backend": "fake"}, None, {}, given_as="argument")
    engine = Engine(fake, scheduler_settings(resolved.settings, fake.traits))
    engine.start()
    try:
        yield engine
    finally:
        engine.close(drain_s=0)


def run_jobs(engine: Engine, jobs: Sequence[Job]) -> list[Record]:
    """Hand the jobs in as they come, wait for their ends, and give all that the engine told."""
    records: list[Record] = []
    engine.observe(records.append)
    began = time.monotonic()
    handles = []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + job.at_s - time.monotonic()))
        handles.append(_send(engine, str(number), job))
    for handle in handles:
        handle.result(WAIT_S)
    engine.unobserve(records.append)
    return records


def warm_up(engine: Engine, places: int) -> None:
    """Let the first passes, which are slow, be over; as many as a group that has to be full."""
    job = Job(0.0, 64, 8)
    for handle in [_send(engine, f"warm {number}", job) for number in range(places)]:
        handle.result(WAIT_S)


def _send(engine: Engine, name: str, job: Job) -> Handle[Answer]:
    chance = random.Random(name)
    prompt = tuple(chance.randrange(TOKEN_FIRST, TOKEN_END) for _ in range(job.prompt_count))
    params = SamplingParams(temperature=0.0, max_tokens=job.completion_count, ignore_eos=True)
    request = Request(
        id=RequestId(name),
        prompt=prompt,
        params=params,
        seed=0,
        priority=job.priority,
        tenant=job.tenant,
    )
    return engine.send(request, streams=False)


class Phase(StrEnum):
    """What a request does while it has a place."""

    PREFILL = "prefill"
    GENERATE = "generates"


@dataclass(slots=True)
class Span:
    """A time in which a request did one thing."""

    phase: Phase
    began_at: float
    ended_at: float


@dataclass(slots=True)
class Life:
    """What became of one request. Times are seconds since the first arrival."""

    tenant: str
    priority: Priority
    arrived_at: float
    prompt_count: int
    spans: list[Span] = field(default_factory=list)
    preempted_at: list[float] = field(default_factory=list)
    answered_at: float = 0.0
    has_place: bool = False

    @property
    def ran_until(self) -> float:
        """When its last pass was over; its answer may be handed out later, with others."""
        return self.spans[-1].ended_at if self.spans else self.arrived_at

    @property
    def took_s(self) -> float:
        """From its arrival to its answer."""
        return self.answered_at - self.arrived_at

    def run(self, phase: Phase, began_at: float, ended_at: float) -> None:
        """It was in a pass; between two passes it does the same, if it kept its place."""
        last = self.spans[-1] if self.has_place else None
        if last is not None and last.phase is phase:
            last.ended_at = ended_at
        else:
            self.spans.append(Span(phase, last.ended_at if last else began_at, ended_at))
        self.has_place = True

    def lose_place(self, at: float) -> None:
        """It was preempted, and waits again."""
        self.preempted_at.append(at)
        self.has_place = False


@dataclass(frozen=True, slots=True)
class Size:
    """Sequences in a batch, and from when to when it ran."""

    began_at: float
    ended_at: float
    count: int


@dataclass(slots=True)
class Run:
    """All that a picture shows of one run."""

    lives: dict[str, Life] = field(default_factory=dict)
    sizes: list[Size] = field(default_factory=list)

    @property
    def took_s(self) -> float:
        """From the first arrival to the last answer."""
        return max(life.answered_at for life in self.lives.values())

    def tenants(self) -> list[str]:
        """Those who asked, the highest class first."""
        classes = {life.tenant: life.priority for life in self.lives.values()}
        return sorted(classes, key=lambda tenant: -classes[tenant])

    def rows(self) -> list[Life]:
        """From top to bottom: by tenant, and then as they came."""
        order = self.tenants()
        return sorted(
            self.lives.values(), key=lambda life: (order.index(life.tenant), life.arrived_at)
        )

    def words(self) -> str:
        """The run in one line."""
        mean = statistics.fmean(size.count for size in self.sizes)
        middle_s = [
            statistics.median(life.took_s for life in self.lives.values() if life.tenant == tenant)
            for tenant in self.tenants()
        ]
        halves = ", ".join(
            f"{tenant} {seconds:.1f} s".strip()
            for tenant, seconds in zip(self.tenants(), middle_s, strict=True)
        )
        return (
            f"{len(self.lives)} answers in {self.took_s:.1f} s, half of them within {halves}; "
            f"{len(self.sizes)} batches of {mean:.1f}"
        )


def read_run(records: Sequence[Record]) -> Run:
    """What happened, from what the engine told."""
    origin = min(each.arrived_at for each in records if isinstance(each, RequestAccepted))
    run = Run()
    for record in records:
        at = record.at - origin
        match record:
            case RequestAccepted():
                arrived_at = record.arrived_at - origin
                run.lives[record.request_id] = Life(
                    record.tenant, record.priority, arrived_at, record.prompt_tokens
                )
            case TickRecord():
                began_at = at - record.tick_ms / 1e3
                run.sizes.append(Size(began_at, at, record.batch_size))
                for member in record.members:
                    life = run.lives[member.request_id]
                    # One that lost its memory computes again what it had made, many at a time.
                    generates = member.start >= life.prompt_count and member.length == 1
                    life.run(Phase.GENERATE if generates else Phase.PREFILL, began_at, at)
            case RequestPreempted():
                run.lives[record.request_id].lose_place(at)
            case RequestDone() | RequestFailed():
                run.lives[record.request_id].answered_at = at
    return run


COLOURS = {Phase.PREFILL: "#e08a1e", Phase.GENERATE: "#2f77a3"}
WAITING, HELD, PREEMPTED, ANSWERED, BATCH = "#d4d4d4", "#7a7a7a", "#c22f2f", "#111111", "#8fb9cf"
BAR = 0.72


# Any: matplotlib has no types that we could name without it.
def draw_bars(axes: Any, run: Run) -> None:
    """A bar for each request, the first at the top."""
    rows = run.rows()
    for row, life in enumerate(rows):
        axes.barh(row, life.ran_until - life.arrived_at, BAR, life.arrived_at, color=WAITING)
        for span in life.spans:
            width = span.ended_at - span.began_at
            axes.barh(row, width, BAR, span.began_at, color=COLOURS[span.phase])
        axes.plot([life.ran_until, life.answered_at], [row, row], color=HELD, linewidth=0.9)
        axes.plot(life.preempted_at, [row] * len(life.preempted_at), "X", color=PREEMPTED,
                  markersize=6, markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
        axes.plot(life.answered_at, row, "|", color=ANSWERED, markersize=7, markeredgewidth=1.6)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_ylabel("requests")
    axes.grid(visible=True, axis="x", linewidth=0.3)
    axes.set_axisbelow(True)
    tenants = run.tenants()
    if len(tenants) == 1:
        axes.set_yticks([0, *range(5, len(rows), 6)], [1, *range(6, len(rows) + 1, 6)])
        return
    middles = []
    for tenant in tenants:
        places = [row for row, life in enumerate(rows) if life.tenant == tenant]
        middles.append(statistics.fmean(places))
        if tenant != tenants[0]:
            axes.axhline(places[0] - 0.5, color="black", linewidth=0.4)
    axes.set_yticks(middles, tenants, rotation=90, va="center")
    axes.tick_params(axis="y", length=0)


def draw_sizes(axes: Any, run: Run, places: int) -> None:
    """How many sequences each batch had; nothing where none ran."""
    times, counts = [0.0], [0]
    for size in run.sizes:
        times += [size.began_at, size.began_at, size.ended_at, size.ended_at]
        counts += [0, size.count, size.count, 0]
    axes.fill_between(times, counts, color=BATCH, linewidth=0)
    axes.set(ylim=(0, places + 0.5), yticks=[0, places // 2, places], ylabel="batch")
    axes.set_xlabel("seconds since the first arrival")
    axes.grid(visible=True, linewidth=0.3)


def draw_legend(pyplot: Any, figure: Any, run: Run) -> None:
    """What the colours and marks mean; only those that any picture of this kind may have."""
    lines, patches = pyplot.matplotlib.lines.Line2D, pyplot.matplotlib.patches.Patch
    handles = [
        patches(color=WAITING, label="waits"),
        *(patches(color=colour, label=str(phase)) for phase, colour in COLOURS.items()),
    ]
    if len(run.tenants()) > 1:
        handles.append(lines([], [], color=PREEMPTED, marker="X", linestyle="", label="preempted"))
    else:
        handles.append(lines([], [], color=HELD, linewidth=0.9, label="done, answer held back"))
    answered = {"color": ANSWERED, "marker": "|", "markeredgewidth": 1.6, "linestyle": ""}
    handles.append(lines([], [], label="answer handed out", **answered))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False,
                  fontsize=9, handlelength=1.4, columnspacing=1.4)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """What all pictures of one kind have in common."""

    seconds: float
    places: int


def draw(pyplot: Any, setup: Setup, run: Run, frame: Frame, folder: Path) -> Path:
    """Write the picture of one run."""
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(9, 5.2), height_ratios=(4.2, 1), sharex=True, layout="constrained"
    )
    draw_bars(above, run)
    draw_sizes(below, run, frame.places)
    below.set_xlim(0, frame.seconds)
    above.set_title(f"{setup.title}: {run.words()}", loc="left", fontsize=9)
    draw_legend(pyplot, figure, run)
    path = folder / f"{setup.name}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def load_pyplot() -> Any:
    """matplotlib's drawing, without a display; ends the program where it is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        sys.exit("This draws with matplotlib, which is not installed; pip install matplotlib.")
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def collect(setup: Setup, jobs: Sequence[Job], places: int, backend: str) -> Run:
    """Run the jobs with the settings of a picture."""
    settings = {"max_num_seqs": places, "max_model_len": 512, **setup.settings}
    with open_engine(settings, backend) as engine:
        warm_up(engine, places)
        return read_run(run_jobs(engine, jobs))


def quickest(runs: Iterable[Run]) -> Run:
    """The run to draw: the others were made slower by other programs on the machine."""
    return min(runs, key=lambda run: run.took_s)


def main(arguments: list[str] | None = None) -> None:
    """Run both loads under everything, and draw."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", default="auto", help="as jitney's; fake needs no model")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pictures go")
    parser.add_argument("--runs", type=int, default=3, help="of each; the quickest is drawn")
    given = parser.parse_args(arguments)
    pyplot = load_pyplot()
    given.folder.mkdir(parents=True, exist_ok=True)
    for setups, jobs, places in (
        (STRATEGIES, strategy_jobs(), STRATEGY_PLACES),
        (POLICIES, policy_jobs(), POLICY_PLACES),
    ):
        runs = []
        for setup in setups:
            tries = (collect(setup, jobs, places, given.backend) for _ in range(given.runs))
            runs.append(quickest(tries))
            print(f"{setup.title}: {runs[-1].words()}", flush=True)
        # One scale for all of a kind, so that they can be compared.
        frame = Frame(1.02 * max(run.took_s for run in runs), places)
        for setup, run in zip(setups, runs, strict=True):
            print("wrote", draw(pyplot, setup, run, frame, given.folder).name, flush=True)


if __name__ == "__main__":
    main()
