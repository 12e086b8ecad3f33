"""One load under each strategy, drawn while it runs: how many wait, and how large batches are.

    python examples/live_plot.py                            a window, with the embedded model
    python examples/live_plot.py --png strategies.png       a picture at the end; needs no display
    python examples/live_plot.py --strategy adaptive --backend fake --png adaptive.png

The same requests arrive at the same moments under every strategy. What is drawn comes from
`engine.observe`, whose records docs/reference/records.md lists. The observer only keeps them: it is
called on the engine thread, and all drawing is done on this one.
"""

import argparse
import importlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jitney import LLM, SamplingParams
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import resolve
from jitney.core.request import Request, RequestId
from jitney.engine.engine import Engine
from jitney.loading.compose import scheduler_settings
from jitney.records import (
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestStarted,
    TickRecord,
)

STRATEGIES: dict[str, dict[str, object]] = {
    "static": {"strategy": "static", "max_wait_ms": 1000},
    "dynamic": {"strategy": "dynamic"},
    "adaptive": {"strategy": "adaptive"},
    "continuous": {"strategy": "continuous"},
    "window": {"strategy": "continuous", "max_wait_ms": 250},
}
TITLES = {"window": "continuous, newcomers gathered for 250 ms"}
COMMON: dict[str, object] = {"max_num_seqs": 8, "max_model_len": 512}
PACE = FakeSettings(
    slots=32, kv_tokens=16_384, eos_period=0, tick_s=0.012, token_s=0.0004, sleeps=True
)
"""The fake backend is instant by itself; a pass shall take 12 ms and 0.4 ms for each token."""

DRAW_S = 0.25
END_S_MAX = 300.0


@dataclass(frozen=True)
class Arrival:
    """One request of the load, and when it comes."""

    at_s: float
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Level:
    """How many wait from this moment on."""

    at: float
    count: int


@dataclass
class Run:
    """What was seen of the load under one strategy. `observe` is called on the engine thread."""

    name: str
    ticks: list[TickRecord] = field(default_factory=list)
    accepted: list[RequestAccepted] = field(default_factory=list)
    started: list[RequestStarted] = field(default_factory=list)
    done: list[RequestDone | RequestFailed] = field(default_factory=list)

    def observe(self, record: Record) -> None:
        """Keep what is drawn, and nothing else: the engine waits for this."""
        match record:
            case TickRecord():
                self.ticks.append(record)
            case RequestAccepted():
                self.accepted.append(record)
            case RequestStarted():
                self.started.append(record)
            case RequestDone() | RequestFailed():
                self.done.append(record)

    @property
    def began_at(self) -> float:
        """The first arrival, on the engine's clock."""
        return self.accepted[0].sent_at if self.accepted else 0.0

    def levels(self) -> list[Level]:
        """How many wait, anew from each moment at which one comes or starts.

        By the moments in the records, not by their order: what happens during a forward pass is
        told when it is over. Memory is plenty here, so nobody who started waits again.
        """
        changes = [(each.sent_at, 1) for each in list(self.accepted)]
        changes += [(each.at, -1) for each in list(self.started)]
        found, count = [], 0
        for at, change in sorted(changes, key=lambda each: (each[0], -each[1])):
            count += change
            found.append(Level(at, count))
        return found

    def words(self) -> str:
        """The run in one line."""
        title = TITLES.get(self.name, self.name)
        ticks, done = list(self.ticks), list(self.done)
        if not ticks or not done:
            return title
        took_s = max(each.at for each in done) - self.began_at
        middle_s = sorted(each.duration_ms for each in done)[len(done) // 2] / 1e3
        mean = sum(each.batch_size for each in ticks) / len(ticks)
        return (
            f"{title}: {len(done)} answers in {took_s:.1f} s, half of them within "
            f"{middle_s:.1f} s; {len(ticks)} batches of {mean:.1f}"
        )


def make_load(seed: int, count: int, rate: float) -> list[Arrival]:
    """Requests of mixed lengths, at random moments, `rate` of them a second; equal for a seed."""
    chance = random.Random(seed)
    at_s, load = 0.0, []
    for _ in range(count):
        prompt = tuple(chance.randrange(100, 200) for _ in range(chance.randint(8, 96)))
        load.append(Arrival(at_s, prompt, chance.choice((8, 16, 32, 96))))
        at_s += chance.expovariate(rate)
    return load


@contextmanager
def open_engine(name: str, backend: str) -> Iterator[Engine]:
    """An engine with this strategy, closed in the end."""
    settings = {**COMMON, **STRATEGIES[name]}
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


def run_load(run: Run, engine: Engine, load: list[Arrival], draw: Callable[[], None]) -> None:
    """Hand the load in as it arrives and wait for its end; `draw` is called now and then."""
    engine.observe(run.observe)
    began_at = drawn_at = time.monotonic()
    waiting = list(enumerate(load))
    while len(run.done) < len(load) and time.monotonic() < began_at + END_S_MAX:
        now = time.monotonic()
        while waiting and began_at + waiting[0][1].at_s <= now:
            engine.send(_request(*waiting.pop(0)), streams=False)
        if now >= drawn_at + DRAW_S:
            draw()
            drawn_at = time.monotonic()
        time.sleep(0.002)
    engine.unobserve(run.observe)


def _request(number: int, arrival: Arrival) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=arrival.max_tokens, ignore_eos=True)
    return Request(id=RequestId(str(number)), prompt=arrival.prompt, params=params, seed=number)


# Any: matplotlib has no types that we could name without it.
def draw_run(axes: Any, run: Run) -> None:
    """One row: areas of those who wait and of the batches, a mark for each answer."""
    axes.clear()
    origin, levels = run.began_at, run.levels()
    moments, counts = [each.at - origin for each in levels], [each.count for each in levels]
    axes.fill_between(moments, counts, step="post", color="#ecd3b0", linewidth=0)
    times, sizes = [0.0], [0]
    for tick in list(run.ticks):
        ended_s = tick.at - origin
        began_s = ended_s - tick.tick_ms / 1e3
        times += [began_s, began_s, ended_s, ended_s]
        # Down to nothing between two: a group that gathers runs no batch.
        sizes += [0, tick.batch_size, tick.batch_size, 0]
    axes.fill_between(times, sizes, color="#2f77a3", linewidth=0, label="sequences in the batch")
    # A line as well: the batches hide the lower part of the area.
    axes.step(moments, counts, where="post", color="#d9822b", linewidth=1.1, label="waiting")
    answers = [each.at - origin for each in list(run.done)]
    axes.plot(answers, [-1.4] * len(answers), "|", color="#b3423a", markersize=8, label="an answer")
    axes.set_title(run.words(), loc="left", fontsize=9)
    axes.set_ylabel("sequences")
    axes.grid(visible=True, linewidth=0.3)


class Picture:
    """One row for each run, over the same time."""

    def __init__(self, pyplot: Any, runs: list[Run]) -> None:
        self._runs = runs
        self._pyplot = pyplot
        self.figure, rows = pyplot.subplots(
            len(runs), 1, figsize=(9, 1.0 + 1.5 * len(runs)), sharex=True, sharey=True,
            squeeze=False, layout="constrained",
        )  # fmt: skip
        self._rows = [row[0] for row in rows]

    def draw(self) -> None:
        """All that is known so far."""
        for axes, run in zip(self._rows, self._runs, strict=True):
            draw_run(axes, run)
        top = max((each.count for run in self._runs for each in run.levels()), default=0)
        ends = [run.ticks[-1].at - run.began_at for run in self._runs if run.ticks]
        self._rows[0].set_xlim(0, 1.02 * max(ends, default=1.0))
        self._rows[0].set_ylim(-2.5, max(top, 8) + 1)
        self._rows[-1].set_xlabel("seconds since the first arrival")
        handles, labels = self._rows[0].get_legend_handles_labels()
        for legend in list(self.figure.legends):
            legend.remove()
        self.figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)

    def show(self) -> None:
        """The same in a window, which is given a moment to paint."""
        self.draw()
        self._pyplot.pause(0.001)


def load_pyplot(wants_window: bool) -> Any:
    """matplotlib's drawing; ends the program with a sentence where it is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        sys.exit("This draws with matplotlib, which is not installed; pip install matplotlib.")
    if not wants_window:
        matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    if wants_window and pyplot.get_backend().lower() == "agg":
        sys.exit("There is no display to draw on; give --png FILE for a picture.")
    return pyplot


def main(arguments: list[str] | None = None) -> None:
    """Run the load under the chosen strategies and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--strategy", action="append", choices=list(STRATEGIES))
    parser.add_argument("--backend", default="auto", help="as jitney's; fake needs no model")
    parser.add_argument("--png", metavar="FILE", help="write a picture instead of a window")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=10.0, help="arrivals in a second")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    pyplot = load_pyplot(wants_window=given.png is None)
    load = make_load(given.seed, given.requests, given.rate)
    runs = [Run(name) for name in given.strategy or STRATEGIES]
    picture = Picture(pyplot, runs)
    for run in runs:
        with open_engine(run.name, given.backend) as engine:
            run_load(run, engine, load, picture.show if given.png is None else lambda: None)
        print(run.words(), flush=True)
    picture.draw()
    if given.png is None:
        pyplot.show()
    else:
        picture.figure.savefig(given.png, dpi=110)
        print(f"wrote {given.png}")


if __name__ == "__main__":
    main()
