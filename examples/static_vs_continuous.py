"""Static and continuous batching as two loops to read. docs/learn.md explains them.

    python examples/static_vs_continuous.py                     in the terminal
    python examples/static_vs_continuous.py --png steps.png     and as a picture (matplotlib)

The model is jitney's fake backend: its tokens mean nothing, but each depends on all tokens before
it. A step is one forward pass, and steps are counted in place of seconds, so that every run of this
program prints the same.
"""

import argparse
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any  # Any: matplotlib has no types that we could name without it

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.core.events import FinishEvent, TokensEvent
from jitney.core.params import SamplingParams
from jitney.core.request import Request as CoreRequest
from jitney.core.request import RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings, Strategy

MAX_WAIT = 4
"""Steps that the static loop waits for more requests; 1 at least."""


@dataclass
class Request:
    """One caller's request, and what became of it. All times are steps."""

    number: int
    max_tokens: int
    arrives: int = 0
    tokens: list[int] = field(default_factory=list)
    starts: int = 0
    answered: int = 0

    @property
    def prompt(self) -> tuple[int, ...]:
        """Tokens of the fake model are bytes."""
        return tuple(f"Request {self.number:3}:".encode())

    @property
    def is_done(self) -> bool:
        """Whether all its tokens are made."""
        return len(self.tokens) == self.max_tokens

    @property
    def latency(self) -> int:
        """Steps from its arrival to its answer: what its caller notices."""
        return self.answered - self.arrives

    def add_token(self, token: int, step: int) -> None:
        """It made a token in this step."""
        if not self.tokens:
            self.starts = step
        self.tokens.append(token)

    def send_response(self, step: int) -> None:
        """Its caller has the answer before this step begins."""
        self.answered = step


class Queue:
    """Requests in the order of their arrival; nobody sees one before it arrives."""

    def __init__(self, load: list[Request]) -> None:
        self._load = list(load)

    def has_more(self) -> bool:
        """Whether any request is still in the queue, or will be."""
        return bool(self._load)

    def is_empty(self, step: int) -> bool:
        """Whether nobody waits in this step."""
        return not self._load or self._load[0].arrives > step

    def get(self) -> Request:
        """Take the oldest one out."""
        return self._load.pop(0)


class Model:
    """A model with memory of its own for each request, and a count of what it computed."""

    def __init__(self, load: list[Request]) -> None:
        self.backend = make_backend(len(load))
        self.positions: list[int] = []
        """How many positions each forward pass computed."""

    def forward_one_step(self, requests: list[Request], step: int) -> None:
        """One forward pass: one more token for each of these requests."""
        opened, entries = [], []
        for each in requests:
            known = (*each.prompt, *each.tokens)
            # Prefill computes every position of the prompt, decode only that of the last token.
            start = len(known) - 1 if each.tokens else 0
            if start == 0:
                opened.append(Open(each.number, Sampling(seed=0, prompt_count=len(known))))
            entries.append(Entry(each.number, start, known[start:], wants_token=True))
        batch = Batch(len(self.positions), tuple(opened), tuple(entries))
        self.positions.append(batch.token_count)
        for each, sample in zip(requests, self.backend.execute(batch).samples, strict=True):
            assert sample.token is not None, "every entry wants a token"
            each.add_token(sample.token, step)


def make_backend(slots: int) -> FakeBackend:
    """The fake backend, with memory for 64 tokens of each request."""
    return FakeBackend(FakeSettings(slots=slots, kv_tokens=64 * slots, eos_period=0))


Loop = Callable[[Model, Queue, int], None]


def static_batch_loop(model: Model, queue: Queue, max_batch: int) -> None:
    """Gather a batch, run it until ALL of it is done, answer, and begin again."""
    step = 0
    while queue.has_more():
        batch: list[Request] = []
        deadline = step + MAX_WAIT
        while len(batch) < max_batch and step < deadline:
            if queue.is_empty(step):
                step += 1  # nobody is there: wait
            else:
                batch.append(queue.get())
        while not all(request.is_done for request in batch):
            model.forward_one_step([each for each in batch if not each.is_done], step)
            step += 1
        for request in batch:
            request.send_response(step)


def continuous_batch_loop(model: Model, queue: Queue, max_inflight: int) -> None:
    """Before EVERY step let requests join; after it, let those who are done leave."""
    step = 0
    in_flight: list[Request] = []
    while in_flight or queue.has_more():
        while len(in_flight) < max_inflight and not queue.is_empty(step):
            in_flight.append(queue.get())
        if in_flight:
            model.forward_one_step(in_flight, step)
        step += 1
        for request in in_flight:
            if request.is_done:
                request.send_response(step)
        in_flight = [request for request in in_flight if not request.is_done]


def run_loop(loop: Loop, load: list[Request], places: int) -> list[int]:
    """Run a load through one of the two loops; how many positions each pass computed."""
    model = Model(load)
    loop(model, Queue(load), places)
    return model.positions


def run_scheduler(strategy: Strategy, load: list[Request], places: int) -> list[int]:
    """The same through jitney's own scheduler. A step is a second of its clock."""
    backend = make_backend(places)
    settings = SchedulerSettings(
        model_len_max=64,
        max_num_seqs=places,
        strategy=strategy,
        wait_s=MAX_WAIT if strategy is Strategy.STATIC else 0,
        enable_prefix_caching=False,
    )
    scheduler = Scheduler(settings, backend.traits, backend.vocabulary.eos_tokens)
    queue, live, step, positions = Queue(load), dict[str, Request](), 0, list[int]()
    done: list[Request] = []
    while queue.has_more() or live:
        while not queue.is_empty(step):
            request = queue.get()
            live[str(request.number)] = request
            scheduler.submit(core_request(request), step)
        planned = scheduler.plan(step)
        if planned is not None:
            positions.append(planned.token_count)
            for event in scheduler.apply(planned, backend.execute(planned.batch), step + 1):
                if isinstance(event, TokensEvent):
                    for (request_id, _), token in zip(event.names, event.tokens, strict=True):
                        live[request_id].add_token(token, step)
                elif isinstance(event, FinishEvent):
                    done.append(live.pop(event.request_id))
        step += 1
        if not scheduler.holds_answers:
            for request in done:
                request.send_response(step)
            done = []
    return positions


def core_request(request: Request) -> CoreRequest:
    """A request as the scheduler takes it."""
    params = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True)
    name = RequestId(str(request.number))
    return CoreRequest(id=name, prompt=request.prompt, params=params, seed=0)


WAYS: dict[str, Callable[[list[Request], int], list[int]]] = {
    "static loop": partial(run_loop, static_batch_loop),
    "continuous loop": partial(run_loop, continuous_batch_loop),
    "jitney, static": partial(run_scheduler, Strategy.STATIC),
    "jitney, continuous": partial(run_scheduler, Strategy.CONTINUOUS),
}
DRAWN = [Request(0, 3), Request(1, 30), Request(2, 3, arrives=5)]
"""A, B and C. There are two places, so C has to wait for one."""
DRAWN_PLACES, PLACES, COUNT = 2, 4, 120
LOADS = {
    "mixed lengths, one request every 10 steps": [
        Request(number, (3, 10, 30)[number % 3], arrives=10 * number) for number in range(COUNT)
    ],
    "equal lengths, all at once": [Request(number, 12) for number in range(COUNT)],
    "mixed lengths, all at once": [
        Request(number, (3, 10, 30)[number % 3]) for number in range(COUNT)
    ],
}


@dataclass(frozen=True)
class Run:
    """A load after it went one of the ways."""

    load: list[Request]
    positions: list[int]

    def percentile(self, share: int) -> int:
        """So many percent of the callers have their answer within so many steps."""
        latencies = sorted(request.latency for request in self.load)
        return latencies[math.ceil(share * len(latencies) / 100) - 1]

    @property
    def throughput(self) -> float:
        """Tokens in a step, from the first arrival to the last answer."""
        step_count = max(request.answered for request in self.load)
        return sum(len(request.tokens) for request in self.load) / step_count


def run(way: str, load: list[Request], places: int) -> Run:
    """Run a fresh copy of a load."""
    copy = [replace(request, tokens=[]) for request in load]
    return Run(copy, WAYS[way](copy, places))


PREFILL, TOKEN, WAIT = "▓█·"
PLAIN = str.maketrans(PREFILL + TOKEN + WAIT, "P#.")
MEANINGS = {
    PREFILL: "the prompt is read and the first token made",
    TOKEN: "one more token",
    WAIT: "the caller waits for others",
}
HEADINGS = {
    "static loop": "Static: a batch is answered when ALL of it is done.",
    "continuous loop": "Continuous: each is answered when it is done, and the next one joins.",
}


def cells(request: Request) -> str:
    """What happened to a request, one sign for each step since its arrival."""
    made = PREFILL + TOKEN * (len(request.tokens) - 1)
    held = request.answered - request.starts - len(made)
    return WAIT * (request.starts - request.arrives) + made + WAIT * held


def words(request: Request) -> tuple[str, str]:
    """What a request wants, and when it has it."""
    name = "ABC"[request.number]
    return f"{name}, {request.max_tokens:2} tokens", f"answer after {request.latency} steps"


def step_picture(runs: dict[str, Run]) -> str:
    """A, B and C under both loops, one column for each step."""
    width = max(request.answered for each in runs.values() for request in each.load)
    scale = "step".ljust(14) + "".join(f"{at:<10}" for at in range(0, width, 10)).rstrip()
    lines = []
    for way, each in runs.items():
        lines += [HEADINGS[way], scale]
        for request in each.load:
            wanted, had = words(request)
            row = " " * request.arrives + cells(request)
            lines.append(f"{wanted}  {row:<{width + 2}}{had}")
        lines.append("")
    return "\n".join([*lines, *(f"{sign}  {meaning}" for sign, meaning in MEANINGS.items())])


def table(load: str, runs: dict[str, Run]) -> str:
    """p50 and p95 beside each other, and what the model did for them."""
    lines = [f"{load:<42}  p50   p95  tokens/step  positions"]
    for way, each in runs.items():
        lines.append(
            f"  {way:<40}{each.percentile(50):5} {each.percentile(95):5}"
            f" {each.throughput:12.2f} {sum(each.positions):10,}"
        )
    return "\n".join(lines)


def same_tokens(runs: dict[str, Run]) -> bool:
    """Whether every request has the same tokens, whichever way it went."""
    return len({str([request.tokens for request in each.load]) for each in runs.values()}) == 1


# Colours of Okabe and Ito, which colour-blind readers tell apart.
CELL_COLOURS = {PREFILL: "#e69f00", TOKEN: "#0072b2", WAIT: "#d9d9d9"}
BAR_COLOURS = {"static loop": "#cc79a7", "continuous loop": "#009e73"}


def draw_steps(axes: Any, way: str, each: Run) -> None:
    """One row for each request, one box for each step."""
    for row, request in enumerate(each.load):
        for place, sign in enumerate(cells(request), request.arrives):
            axes.barh(row, 0.88, 0.72, place + 0.06, color=CELL_COLOURS[sign])
        axes.text(request.answered + 0.3, row, "\u25c0 " + words(request)[1], va="center")
    axes.set_yticks(range(len(each.load)), [words(request)[0] for request in each.load])
    axes.set(xlim=(0, 48), ylim=(2.6, -0.6), xticks=range(0, 41, 5))
    axes.set_title(HEADINGS[way], loc="left", fontsize=12, fontweight="bold")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_bars(axes: Any, title: str, values: Mapping[str, float], longest: float) -> None:
    """One figure of both loops, with its number on each bar."""
    bars = axes.barh(list(values), list(values.values()), 0.66, color=list(BAR_COLOURS.values()))
    axes.bar_label(bars, fmt="{:.4g}", padding=4)
    axes.set(xlim=(0, 1.2 * longest), xticks=(), ylim=(1.5, -0.5))
    axes.set_title(title, loc="left", fontsize=11)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw(drawn: dict[str, Run], load: str, runs: dict[str, Run], file: str) -> None:
    """Write the picture; ends the program with a sentence where that cannot be."""
    try:
        figures = importlib.import_module("matplotlib.figure")
        patches = importlib.import_module("matplotlib.patches")
        Path(file).write_bytes(b"")  # a trial, before the work
    except ModuleNotFoundError:
        sys.exit(
            "The picture is drawn with matplotlib, which is not installed; pip install matplotlib, "
            "or leave --png out."
        )
    except OSError as error:
        sys.exit(f"The picture cannot be written to {file}: {error.strerror}.")
    figure = figures.Figure(figsize=(10, 6.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    above, below = figure.subfigures(2, 1, height_ratios=(3.1, 1), hspace=0.05)
    above.suptitle("Static batching makes A wait for B. Continuous batching does not.", fontsize=15)
    for axes, (way, each) in zip(above.subplots(2, 1), drawn.items(), strict=True):
        draw_steps(axes, way, each)
    axes.set_xlabel("step: one forward pass for all that run", loc="left")
    signs = [patches.Patch(color=CELL_COLOURS[sign], label=MEANINGS[sign]) for sign in MEANINGS]
    above.legend(handles=signs, loc="outside lower center", ncols=3, frameon=False)
    below.suptitle(f"{COUNT} requests, {load}", x=0.02, ha="left", fontsize=12, fontweight="bold")
    p50, p95, rates = {}, {}, {}
    for way in BAR_COLOURS:
        p50[way], p95[way] = runs[way].percentile(50), runs[way].percentile(95)
        rates[way] = round(runs[way].throughput, 2)
    left, middle, right = below.subplots(1, 3, sharey=True)
    draw_bars(left, "p50: steps until half are answered", p50, max(p95.values()))
    draw_bars(middle, "p95: until 95 of 100 are", p95, max(p95.values()))
    draw_bars(right, "throughput: tokens in a step", rates, max(rates.values()))
    text = f"{step_picture(drawn)}\n\n{table(load, runs)}"
    figure.savefig(file, dpi=100, format="png", metadata={"Description": text})
    show(f"Wrote {file}.")


def show(text: str) -> None:
    """Print, with plain signs where the terminal has no others."""
    try:
        print(text)
    except UnicodeEncodeError:
        print(text.translate(PLAIN))


def main(arguments: list[str] | None = None) -> None:
    """Show A, B and C, then three loads all four ways."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--png", metavar="FILE", help="also draw a picture")
    given = parser.parse_args(arguments)
    drawn = {way: run(way, DRAWN, DRAWN_PLACES) for way in HEADINGS}
    show(step_picture(drawn))
    show(f"\nSteps until the answer; {COUNT} requests, {PLACES} places.")
    results = {load: {way: run(way, LOADS[load], PLACES) for way in WAYS} for load in LOADS}
    for load, runs in results.items():
        show("\n" + table(load, runs))
    if all(map(same_tokens, results.values())):
        show("\nEvery request has the same tokens all four ways.")
    if given.png is not None:
        draw(drawn, *next(iter(results.items())), given.png)


if __name__ == "__main__":
    main()
