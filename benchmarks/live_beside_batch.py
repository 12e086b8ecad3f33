"""`python -m benchmarks.live_beside_batch`: what a batch does to the first tokens of live calls.

One server. Live chats come at random moments (a Poisson process), at a part of what the server can
do, first without and then with a batch behind them, in turns. Both runs of a pair have the same
arrivals and lengths, and other texts, so that the second finds nothing cached. The figure is the
p95 of the time to the first token with the batch over that without; the goal is at most 1.3. The
last line is JSON.

`--backend fake` tries the whole of it without a model: its passes take time, and no core.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from openai import OpenAI

from benchmarks.http import paced
from benchmarks.http.served import Served, served
from jitney_lab.bench.drive import drive
from jitney_lab.bench.http_target import CHAT, HttpTarget, served_model
from jitney_lab.bench.steal import StealWatch
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Workload, fixed, random_lengths

GOAL = 1.3
FAKE_TICK_MS = 10.0
FAKE_TOKEN_US = 500.0
"""What a pass of the fake backend takes, and each token in it."""

WAIT_S_MAX = 120.0
"""Until a batch runs, and until it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """The live chats of one run, in milliseconds, and what a batch did meanwhile."""

    count: int
    failed: int
    p50_ms: float
    p95_ms: float
    gap_p95_ms: float
    """Between pieces of an answer."""
    lines_per_s: float = 0.0
    stolen_share: float | None = None
    """What other machines on the same host took of the processors; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Pairs of runs: without a batch, and with one. Ratios are with over without."""

    p50_ratio: float
    p95_ratio: float
    """The median of the pairs."""
    p95_ratio_least: float
    p95_ratio_most: float
    lines_per_s: float
    failed: int

    @property
    def is_good(self) -> bool:
        """Whether the goal is reached, and nobody failed."""
        return self.p95_ratio <= GOAL and not self.failed


def run_of(times: Sequence[RequestTimes], lines_per_s: float = 0.0) -> LiveRun:
    """The figures of one run."""
    good = [each for each in times if each.error is None and each.ttft_s is not None]
    first = sorted(each.ttft_s * 1e3 for each in good if each.ttft_s is not None)
    gaps = sorted(gap * 1e3 for each in good for gap in each.itl_s)
    return LiveRun(
        count=len(times),
        failed=len(times) - len(good),
        p50_ms=float(np.percentile(first, 50.0)) if first else 0.0,
        p95_ms=float(np.percentile(first, 95.0)) if first else 0.0,
        gap_p95_ms=float(np.percentile(gaps, 95.0)) if gaps else 0.0,
        lines_per_s=lines_per_s,
    )


def compare(pairs: Sequence[tuple[LiveRun, LiveRun]]) -> Comparison:
    """The ratios of the pairs."""
    assert pairs, "there is nothing to compare"
    p95 = [behind.p95_ms / alone.p95_ms for alone, behind in pairs]
    return Comparison(
        p50_ratio=statistics.median(behind.p50_ms / alone.p50_ms for alone, behind in pairs),
        p95_ratio=statistics.median(p95),
        p95_ratio_least=min(p95),
        p95_ratio_most=max(p95),
        lines_per_s=statistics.median(behind.lines_per_s for _, behind in pairs),
        failed=sum(each.failed for pair in pairs for each in pair),
    )


class LiveBesideBatch:
    """The runs against one server."""

    def __init__(self, options: argparse.Namespace, server: Served, client: OpenAI) -> None:
        self._options = options
        self._client = client
        self._address = f"http://127.0.0.1:{server.port}"
        self._model = served_model(self._address, None)
        self._texts = options.seed
        self._rate: float = options.rate or 0.0

    def pairs(self) -> list[tuple[LiveRun, LiveRun]]:
        """Without and with, in turns."""
        self._live(self._closed(2 * self._options.sequences))
        if not self._rate:
            capacity = self._capacity()
            self._rate = self._options.load * capacity
            print(f"capacity {capacity:.2f} chats/s, so {self._rate:.2f} arrive in a second")
        found = []
        for number in range(self._options.pairs):
            workload = self._poisson(self._options.seed + number)
            watch = StealWatch()
            alone = replace(run_of(self._live(workload)), stolen_share=watch.share())
            print(f"pair {number + 1}, without: {_words(alone)}")
            behind = self._behind(workload)
            print(f"pair {number + 1}, with:    {_words(behind)}")
            found.append((alone, behind))
        return found

    def _capacity(self) -> float:
        """Chats in a second when as many are always under way as can run."""
        workload = self._closed(4 * self._options.sequences)
        started_at = time.monotonic()
        self._live(workload)
        return len(workload.jobs) / (time.monotonic() - started_at)

    def _closed(self, count: int) -> Workload:
        options = self._options
        return fixed(
            count, options.prompt, options.tokens, seed=options.seed, clients=options.sequences
        )

    def _poisson(self, seed: int) -> Workload:
        options = self._options
        return random_lengths(
            options.streams,
            options.prompt,
            options.tokens,
            per_s=self._rate,
            range_ratio=0.5,
            seed=seed,
        )

    def _live(self, workload: Workload) -> list[RequestTimes]:
        """Send the chats; each time with other texts."""
        self._texts += 1
        target = HttpTarget(
            base_url=self._address, endpoint=CHAT, model=self._model, seed=self._texts
        )

        async def run() -> list[RequestTimes]:
            async with target.client() as client:
                return await drive(workload, lambda job: target.ask(client, job))

        return asyncio.run(run())

    def _behind(self, workload: Workload) -> LiveRun:
        """The same with a batch behind it."""
        with self._batch() as batch_id:
            done, started_at, watch = self._done(batch_id), time.monotonic(), StealWatch()
            times = self._live(workload)
            share = watch.share()
            seconds = time.monotonic() - started_at
            done_after = self._done(batch_id)
            if done_after >= self._options.lines:
                raise SystemExit("The batch ended before the chats did; give it more --lines.")
        return replace(run_of(times, (done_after - done) / seconds), stolen_share=share)

    @contextmanager
    def _batch(self) -> Iterator[str]:
        """A batch that runs, until the end of the block."""
        options, client = self._options, self._client
        self._texts += 1
        jobs = fixed(
            options.lines, options.line_prompt, options.line_tokens, seed=self._texts, clients=1
        ).jobs
        content = "".join(
            json.dumps(
                {
                    "custom_id": f"line-{job.number}",
                    "method": "POST",
                    "url": CHAT,
                    "body": {
                        "messages": [{"role": "user", "content": job.text(self._texts)}],
                        "max_tokens": job.completion_count,
                        "temperature": 0,
                        "ignore_eos": True,
                    },
                }
            )
            + "\n"
            for job in jobs
        )
        file = client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        _wait(lambda: self._done(batch.id) >= options.sequences)
        try:
            yield batch.id
        finally:
            client.batches.cancel(batch.id)
            ended = ("cancelled", "completed")
            _wait(lambda: client.batches.retrieve(batch.id).status in ended)

    def _done(self, batch_id: str) -> int:
        counts = self._client.batches.retrieve(batch_id).request_counts
        return 0 if counts is None else counts.completed + counts.failed


def _wait(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S_MAX
    while not is_so():
        if time.monotonic() > ends_at:
            raise SystemExit(f"The batch is not where it should be after {WAIT_S_MAX:g} s.")
        time.sleep(0.1)


def _words(run: LiveRun) -> str:
    told = (
        f"first token p50 {run.p50_ms:.0f} ms, p95 {run.p95_ms:.0f} ms; gap p95 "
        f"{run.gap_p95_ms:.0f} ms; {run.count} chats, {run.failed} failed"
    )
    if run.lines_per_s:
        told += f"; {run.lines_per_s:.2f} lines/s"
    return told if run.stolen_share is None else f"{told}; others took {run.stolen_share:.1%}"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_beside_batch")
    parser.add_argument("--pairs", type=int, default=3, help="runs without and with a batch")
    parser.add_argument("--streams", type=int, default=100, help="live chats of a run")
    parser.add_argument("--rate", type=float, help="live chats a second; measured if not given")
    parser.add_argument("--load", type=float, default=0.3, help="their part of the capacity")
    parser.add_argument("--prompt", type=int, default=100, help="words of a chat, on average")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of its answer")
    parser.add_argument("--lines", type=int, default=20_000, help="lines of each batch")
    parser.add_argument("--line-prompt", type=int, default=100)
    parser.add_argument("--line-tokens", type=int, default=64)
    parser.add_argument("--sequences", type=int, default=16, help="slots of the server")
    parser.add_argument("--backend", choices=("fake", "auto"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run it; 1 if the goal is missed."""
    options = parse(arguments)
    program: Sequence[str] = ("jitney",)
    flags = ["--max-num-seqs", str(options.sequences)]
    if options.backend == "fake":
        program = paced.program(FAKE_TICK_MS, FAKE_TOKEN_US, ends=False)
        flags += ["--backend", "fake", "--kv-tokens", "100000"]
    with (
        tempfile.TemporaryDirectory() as folder,
        served(*flags, "--jobs-dir", str(Path(folder) / "jobs"), program=program) as server,
        OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client,
    ):
        pairs = LiveBesideBatch(options, server, client).pairs()
    found = compare(pairs)
    print(
        f"p95 with a batch over without: {found.p95_ratio:.2f} "
        f"({found.p95_ratio_least:.2f} to {found.p95_ratio_most:.2f}), p50 {found.p50_ratio:.2f}; "
        f"the goal is {GOAL}"
    )
    runs = [{"without": asdict(alone), "with": asdict(behind)} for alone, behind in pairs]
    print(json.dumps({**asdict(found), "is_good": found.is_good, "pairs": runs}))
    return 0 if found.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
