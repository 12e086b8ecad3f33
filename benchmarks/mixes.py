"""What the mix costs and saves: the same arrivals under `decode-first` and `bounded-stall`.

Prompts of very different length arrive while others generate. Whoever generates waits for the
longest tick that carries him; whoever arrives waits for his first token; both share one machine.
"""

import random
from pathlib import Path

from benchmarks.load import (
    RUNS,
    VOCABULARY,
    Figures,
    Job,
    make_backend,
    make_engine,
    percentile,
    random_jobs,
    say,
    serve,
)
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Outcome
from jitney.core.scheduler_settings import Mix

LENGTH_MAX = 1536
PROMPT_COUNTS = (24, 24, 24, 100, 100, 400, 1400)
MIXES = (Mix.DECODE_FIRST, Mix.BOUNDED_STALL)


class Ticks:
    """Runs the batches of a backend and keeps the time of each that carries a generating one."""

    def __init__(self, backend: Backend) -> None:
        self._execute = backend.execute
        self.seconds: list[float] = []

    def execute(self, batch: Batch) -> Outcome:
        """Pass it on, and note what it took."""
        outcome = self._execute(batch)
        if any(entry.continues or (entry.length == 1 and entry.start) for entry in batch.entries):
            self.seconds.append(outcome.seconds)
        return outcome


def measure_mixes(path: Path, *, per_s: float | None) -> Figures:
    """48 requests, of 24 to 1,400 tokens and 48 out; all at once where no rate is given."""
    rates: list[float] = []
    gaps: dict[Mix, list[float]] = {mix: [] for mix in MIXES}
    firsts: dict[Mix, list[float]] = {mix: [] for mix in MIXES}
    for number in range(RUNS):
        jobs, line, rate = _jobs(per_s, seed=700 + number), [], {}
        for mix in MIXES if number % 2 == 0 else MIXES[::-1]:
            backend = make_backend(path, slot_tokens=LENGTH_MAX)
            ticks = Ticks(backend)
            backend.execute = ticks.execute  # type: ignore[method-assign]
            engine = make_engine(backend, mix=mix, cache_tokens=0)
            run = serve(engine, jobs)
            engine.close()
            rate[mix] = run.tokens_per_s
            timings = [answer.completions[0].timing for answer in run.answers]
            first = [timing.first_token_s or 0.0 for timing in timings]
            gaps[mix].append(percentile(ticks.seconds, 0.99))
            firsts[mix].append(percentile(first, 0.95))
            line.append(
                f"{mix} {run.tokens_per_s:.0f} tok/s, ticks p99 {gaps[mix][-1]:.2f} s and "
                f"{max(ticks.seconds):.2f} s at most, first token p50 "
                f"{percentile(first, 0.5):.2f} s, p95 {firsts[mix][-1]:.2f} s"
            )
        rates.append(rate[Mix.BOUNDED_STALL] / rate[Mix.DECODE_FIRST])
        say("; ".join(line))
    return {
        "throughput_over_decode_first": rates,
        "tick_s_p99": {str(mix): values for mix, values in gaps.items()},
        "first_token_s_p95": {str(mix): values for mix, values in firsts.items()},
    }


def _jobs(per_s: float | None, *, seed: int) -> list[Job]:
    generator = random.Random(seed)
    jobs, at_s = [], 0.0
    for number in range(48):
        count = generator.choice(PROMPT_COUNTS)
        (job,) = random_jobs(1, count, 48, seed=1000 * seed + number, vocabulary_size=VOCABULARY)
        jobs.append(Job(job.prompt, job.completion_count, at_s))
        at_s += generator.expovariate(per_s) if per_s else 0.0
    return jobs
