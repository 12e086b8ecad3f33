"""What each knob does on this machine: the tables of `docs/tuning.md`, one run for each line.

`python -m benchmarks.tuning [SECTION ...]` prints them as Markdown; ten minutes for all on two
cores. The model is the embedded one on the backend that is the default here. Clients ask again as
soon as they have their answer, or after a pause; prompts share nothing. A request that has not
ended counts where it is older than any that has, and a figure that is such an age has a >.

    tokens/s      completion tokens a second, all clients together
    latency       from handing a request in to its end, p50 and p95
    first token   the same to the first token, p50
    tick p99      time between two tokens of whoever generates
    batch         sequences in a forward pass
    preempted     sequences that lost their place, for memory or by class
"""

import argparse
import math
import platform
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.load import percentile
from jitney import LLM, Handle, RequestOutput, SamplingParams
from jitney.backends.machine.cores import usable_cores
from jitney.errors import JitneyError
from jitney.records import (
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestPreempted,
    TickRecord,
)

SECONDS = 10.0
WARM_S = 3.0
LOAD_S = 5.0
"""What it takes to load the model for a line, about."""
WAIT_S = 60.0
TOKEN_FIRST, TOKEN_END = 100, 49_000
COLUMNS = ("tokens/s", "latency p50, s", "p95, s", "first token p50, s", "tick p99, ms")
COLUMNS_MORE = ("batch", "preempted")


@dataclass(frozen=True, slots=True)
class Load:
    """Clients, what each asks for, and how long it pauses between two requests in the mean."""

    clients: int = 32
    prompt_counts: tuple[int, ...] = (16, 32, 64, 96)
    completion_counts: tuple[int, ...] = (8, 16, 32, 48)
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: its settings, and what the seeds say of them."""

    settings: dict[str, object]
    claim: str = ""

    @property
    def name(self) -> str:
        """The settings as they are written."""
        written = [f"`{name}: {value}`" for name, value in self.settings.items()]
        return ", ".join(written) or "defaults"


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page: a heading, a load, and the lines that it is tried on."""

    title: str
    load: Load
    lines: tuple[Line, ...]


CROWD = Load()
CALM = Load(clients=16, pause_s=2.0)
LONG = Load(clients=16, prompt_counts=(24, 24, 24, 600))
STATIC: dict[str, object] = {"strategy": "static", "max_wait_ms": 1000}

SECTIONS = {
    "size": Section(
        "Batch size",
        CROWD,
        (
            Line({"max_num_seqs": 1}, "004: 1.0x"),
            Line({"max_num_seqs": 2}, "004: 1.8x"),
            Line({"max_num_seqs": 4}, "004: 3.0x; 002: low latency"),
            Line({"max_num_seqs": 8}, "004: 4.5x; 002: low latency"),
            Line({"max_num_seqs": 16}, "004: 5.5x; 002: balanced; 004: GPUs"),
            Line({"max_num_seqs": 32}, "004: 6.2x; 002: high throughput"),
        ),
    ),
    "waiting": Section(
        "Waiting",
        CALM,
        (
            Line({"max_wait_ms": 0}, "000: lowest latency"),
            Line({"max_wait_ms": 20}, "001: 20 ms; 002: better latency, smaller batches"),
            Line({"max_wait_ms": 50}, "002: balanced"),
            Line({"max_wait_ms": 200}, "002: better throughput, worse latency"),
        ),
    ),
    "strategy": Section(
        "Strategy",
        CROWD,
        (
            Line(STATIC, "004: highest throughput, high latency"),
            Line({**STATIC, "group_answers": "each"}, ""),
            Line({"strategy": "dynamic", "max_wait_ms": 100}, "004: high throughput"),
            Line({"strategy": "adaptive"}, "004: for variable load"),
            Line({"strategy": "continuous"}, "002: highest throughput; 004: lowest"),
        ),
    ),
    "chunk": Section(
        "Chunk and mix",
        LONG,
        (
            Line({"prefill_chunk": 64}, ""),
            Line({"prefill_chunk": 512}, "000: 512"),
            Line({"mix": "decode-first"}, "000: decodes first, no bound on time"),
            Line({"mix": "separate"}, "003: production keeps them apart"),
            Line({"target_stall_ms": 300}, ""),
        ),
    ),
    "memory": Section(
        "Memory",
        CROWD,
        (
            Line({"kv_tokens": 8192}, "001: one budget for all"),
            Line({"kv_tokens": 1024}, ""),
            Line({"kv_tokens": 1024, "saved_limit": 0}, ""),
            Line(
                {"kv_tokens": 4096, "max_per_sequence": "even"},
                "001: `n_ctx` over `n_parallel` for each",
            ),
        ),
    ),
    "presets": Section(
        "Low latency against throughput",
        LONG,
        (
            Line({"max_num_seqs": 4, "target_stall_ms": 50}, "002: low latency, 4-8"),
            Line({}, "002: balanced, 16-32"),
            Line(
                {"max_num_seqs": 32, "mix": "prefill-first"},
                "002: high throughput, 32-64",
            ),
        ),
    ),
}
"""One run for each line, in this order."""


@dataclass(frozen=True, slots=True)
class Age:
    """Seconds that something took, or has taken until now."""

    seconds: float
    is_over: bool = True

    def __str__(self) -> str:
        return f"{'' if self.is_over else '>'}{self.seconds:.2f}"


@dataclass(slots=True)
class Watch:
    """Keeps what the engine tells while it is on: `take` on its thread, the others on any."""

    is_on: bool = False
    ticks_ms: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    sampled: int = 0
    preempted: int = 0
    firsts_s: list[float] = field(default_factory=list)
    ended: list[Age] = field(default_factory=list)
    begun: dict[str, float] = field(default_factory=dict)
    """When each live request arrived, on the engine's clock."""
    at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, record: Record) -> None:
        """Note one record."""
        with self.lock:
            self._take(record)

    def _take(self, record: Record) -> None:
        self.at = record.at
        match record:
            case RequestAccepted():
                self.begun[record.request_id] = record.arrived_at
            case RequestDone() | RequestFailed():
                self.begun.pop(record.request_id, None)
        if not self.is_on:
            return
        match record:
            case TickRecord():
                self._take_tick(record)
            case RequestPreempted():
                self.preempted += 1
            case RequestDone() if not record.was_cancelled:
                self.ended.append(Age(record.duration_ms / 1e3))
                if record.ttft_ms is not None:
                    self.firsts_s.append(record.ttft_ms / 1e3)

    def _take_tick(self, record: TickRecord) -> None:
        self.sizes.append(record.batch_size)
        self.sampled += record.sampled_tokens
        if record.decode_tokens:
            self.ticks_ms.append(record.tick_ms)

    def ages(self) -> list[Age]:
        """Latencies of those who ended, and the ages of those who have taken longer already."""
        with self.lock:
            longest_s = max((each.seconds for each in self.ended), default=0.0)
            live = [Age(self.at - began, is_over=False) for began in self.begun.values()]
            return [*self.ended, *(each for each in live if each.seconds > longest_s)]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run found."""

    tokens_per_s: float
    latency: Age
    latency_p95: Age
    first_s: float
    tick_ms: float
    batch: float
    preempted: int

    @property
    def cells(self) -> tuple[str, ...]:
        """As they stand in the table."""
        return (
            f"{self.tokens_per_s:.0f}",
            str(self.latency),
            str(self.latency_p95),
            f"{self.first_s:.2f}",
            f"{self.tick_ms:.0f}",
            f"{self.batch:.1f}",
            str(self.preempted),
        )


def age_at(ages: Sequence[Age], share: float) -> Age:
    """The age below which this share of them lies."""
    if not ages:
        return Age(math.nan)
    ordered = sorted(ages, key=lambda each: each.seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Client:
    """Asks, waits for the answer, pauses, and asks again until it is told to stop."""

    def __init__(self, llm: LLM, load: Load, number: int, stop: threading.Event) -> None:
        self._llm = llm
        self._load = load
        self._generator = random.Random(number)
        self._stop = stop
        self._handle: Handle[RequestOutput] | None = None
        self._size = min(TOKEN_END, llm.get_tokenizer().vocab_size)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def cancel(self) -> None:
        """Give up what is under way."""
        if self._handle is not None:
            self._handle.cancel()

    def _run(self) -> None:
        # Not all in the same moment, which no real load is.
        self._pause()
        while not self._stop.is_set():
            params = SamplingParams(
                temperature=0.0,
                max_tokens=self._generator.choice(self._load.completion_counts),
                ignore_eos=True,
            )
            try:
                self._handle = self._llm.submit(self._prompt(), params)
                self._handle.result(WAIT_S)
            except (JitneyError, TimeoutError):
                # The engine is closing, or the run is over: nobody waits for this one.
                return
            self._pause()

    def _pause(self) -> None:
        if self._load.pause_s:
            self._stop.wait(self._generator.expovariate(1 / self._load.pause_s))

    def _prompt(self) -> list[int]:
        count = self._generator.choice(self._load.prompt_counts)
        first = min(TOKEN_FIRST, self._size // 2)
        return [self._generator.randrange(first, self._size) for _ in range(count)]


def measure(line: Line, load: Load, seconds: float, common: dict[str, object]) -> Figures:
    """One run: load the model, let the clients warm up, and watch for so many seconds."""
    with LLM(**{**common, **line.settings}) as llm:  # type: ignore[arg-type]
        watch, stop = Watch(), threading.Event()
        llm.engine.observe(watch.take)
        clients = [Client(llm, load, number, stop) for number in range(load.clients)]
        for client in clients:
            client.thread.start()
        time.sleep(min(WARM_S, seconds))
        watch.is_on = True
        started = time.perf_counter()
        time.sleep(seconds)
        watch.is_on = False
        seconds = time.perf_counter() - started
        ages = watch.ages()
        stop.set()
        for client in clients:
            client.cancel()
        for client in clients:
            client.thread.join(WAIT_S)
    return Figures(
        tokens_per_s=watch.sampled / seconds,
        latency=age_at(ages, 0.5),
        latency_p95=age_at(ages, 0.95),
        first_s=percentile(watch.firsts_s, 0.5) if watch.firsts_s else math.nan,
        tick_ms=percentile(watch.ticks_ms, 0.99) if watch.ticks_ms else math.nan,
        batch=sum(watch.sizes) / max(1, len(watch.sizes)),
        preempted=watch.preempted,
    )


def table_head() -> list[str]:
    """The first two lines of every table."""
    titles = ("setting", "the seeds say", *COLUMNS, *COLUMNS_MORE)
    return [row(titles), row(("---", "---", *["---:"] * (len(titles) - 2)))]


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables of the named sections, or of all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each line")
    parser.add_argument("--model", default=None, help="another model")
    parser.add_argument("--backend", default="auto", help="another backend")
    given = parser.parse_args()
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    common: dict[str, object] = {"model": given.model, "backend": given.backend}
    print(f"{platform.machine()}, {usable_cores()} cores, {given.seconds:.0f} s a line", flush=True)
    for name in given.sections or SECTIONS:
        section = SECTIONS[name]
        print(f"\n## {section.title}\n", *table_head(), sep="\n", flush=True)
        for line in section.lines:
            found = measure(line, section.load, given.seconds, common)
            print(row((line.name, line.claim, *found.cells)), flush=True)


if __name__ == "__main__":
    main()
