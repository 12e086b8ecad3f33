"""`jitney bench scaling`: throughput against the number of sequences in a batch.

So many clients ask at the same time. A figure is the time between the ends of two neighbouring
ticks that both have exactly that many sequences and no prefill. So it is the decode rate of a batch
of that size, with all that a tick does beside the forward pass.
"""

import itertools
import math
import statistics
from collections.abc import Mapping
from functools import partial

import numpy as np

from jitney.config import Settings
from jitney.errors import SetupError
from jitney.records import TickRecord
from jitney_lab.bench.in_process import JOINING, UNLIMITED, EngineRun, engine_target, for_bench
from jitney_lab.bench.report import Result, spread
from jitney_lab.bench.steal import CalmParts
from jitney_lab.bench.workload import Say, fixed

SEED_GAINS = {1: 1.0, 2: 1.8, 4: 3.0, 8: 4.5, 16: 5.5, 32: 6.2}
"""What one of the documents that the project began with claims."""

PROMPT_COUNT = 32
COMPLETION_COUNT = 64
WINDOW_MS = 60_000.0
"""Longer than any pause between two sends. It ends when all of a batch were sent."""

SATURATED = 1.1
"""A batch twice as large that is less than this much faster is not worth its latency."""

COLUMNS = ("sequences", "tick ms", "T(B) ms", "tokens/s", "B / T(B)")
GAIN_COLUMNS = ("times one", "claimed once")
"""Only where one sequence was measured too."""

SETS = frozenset(UNLIMITED) | JOINING.keys() | {"max_num_seqs"}
"""The settings that are not the user's here."""


def measure(
    settings: Settings, *, sizes: tuple[int, ...], runs: int, seed: int, say: Say
) -> Result:
    """The decode rate of every size, so many times, sizes up and down in turn."""
    tick_s: dict[int, list[float]] = {size: [] for size in sizes}
    calm = CalmParts(say)
    # All of a batch join together. Else a fast model ends the first before the last has come.
    changed = for_bench(settings, **(JOINING | {"max_wait_ms": WINDOW_MS}), max_num_seqs=max(sizes))
    with engine_target(changed) as target:
        backend = target.traits.name
        for number in range(runs):
            for size in sizes if number % 2 == 0 else reversed(sizes):
                say(f"run {number + 1} of {runs}, {size} at once")
                load = fixed(size, PROMPT_COUNT, COMPLETION_COUNT, seed=seed + number, clients=size)
                run = calm.measure(partial(target.run, load, gathers=True))
                tick_s[size].append(_tick_s(run, size))
    medians = {size: statistics.median(values) for size, values in tick_s.items()}
    rates = {size: size / seconds for size, seconds in medians.items()}
    line = fit(medians)
    stops = saturation(rates)
    rows = tuple(
        (
            str(size),
            spread([1e3 * value for value in tick_s[size]]),
            f"{1e3 * (line['fixed_s'] + size * line['sequence_s']):.2f}",
            f"{rates[size]:,.0f}",
            f"{size / (line['fixed_s'] + size * line['sequence_s']):,.0f}",
            *_gains(size, rates),
        )
        for size in sizes
    )
    return Result(
        name="scaling",
        title=f"Decode rate by batch size, median of {runs} (range)",
        columns=COLUMNS + (GAIN_COLUMNS if 1 in rates else ()),
        rows=rows,
        notes=(_note(line, stops),),
        figures={
            "runs": runs,
            "stolen_share": calm.share,
            "backend": backend,
            "load": {
                "slots": max(sizes),
                "prompt_count": PROMPT_COUNT,
                "completion_count": COMPLETION_COUNT,
            },
            "tick_s": tick_s,
            "tokens_per_s": rates,
            "fit": line,
            "limits_tokens_per_s": rate_limits(line),
            "saturates_at": stops,
            "claimed": SEED_GAINS if 1 in rates else {},
        },
    )


def fit(seconds: Mapping[int, float]) -> dict[str, float]:
    """T(B) = fixed_s + B * sequence_s by least squares of relative errors, and their mean.

    At least two sizes are needed.
    """
    sizes, times = list(seconds), np.array(list(seconds.values()))
    sequence_s, fixed_s = np.polyfit(sizes, times, 1, w=1.0 / times)
    errors = np.abs(fixed_s + np.array(sizes) * sequence_s - times) / times
    return {
        "fixed_s": float(fixed_s),
        "sequence_s": float(sequence_s),
        "error": float(np.mean(errors)),
    }


def rate_limits(line: Mapping[str, float]) -> dict[str, float | None]:
    """Tokens per second of one sequence, 1 / (C + c), and the limit for many, 1 / c.

    None where measured times leave no such limit: a cost that is not above zero is noise.
    """
    costs_s = {"one": line["fixed_s"] + line["sequence_s"], "many": line["sequence_s"]}
    return {name: 1.0 / cost_s if cost_s > 0.0 else None for name, cost_s in costs_s.items()}


def _note(line: Mapping[str, float], stops: int | None) -> str:
    found = "still rises" if stops is None else f"saturates at about {stops}"
    limits = rate_limits(line)
    return (
        f"T(B) = {1e3 * line['fixed_s']:.2f} ms + B * {1e3 * line['sequence_s']:.3f} ms, mean "
        f"error {100 * line['error']:.0f} %; throughput {found}. By this line one sequence makes "
        f"1 / (C + c) = {_shown(limits['one'])} tokens/s, and many come near 1 / c = "
        f"{_shown(limits['many'])}."
    )


def _shown(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:,.0f}"


def saturation(rates: Mapping[int, float]) -> int | None:
    """The smallest size after which doubling gains little; None if the rates still rise.

    Neighbouring sizes may be any step apart: the gain of a step is taken as that of so many
    doublings.
    """
    for size, larger in itertools.pairwise(sorted(rates)):
        doublings = math.log2(larger / size)
        if (rates[larger] / rates[size]) ** (1 / doublings) < SATURATED:
            return size
    return None


def _gains(size: int, rates: dict[int, float]) -> tuple[str, ...]:
    """The rate as a multiple of that of one sequence, and what was claimed once."""
    if 1 not in rates:
        return ()
    claimed = f"{SEED_GAINS[size]:.1f}" if size in SEED_GAINS else ""
    return f"{rates[size] / rates[1]:.2f}", claimed


def _tick_s(run: EngineRun, size: int) -> float:
    """Seconds between the ends of neighbouring full decode ticks, in the median.

    Raises SetupError.
    """
    if run.failures:
        raise SetupError(f"A request failed with {size} at once: {run.failures[0]}")

    def is_full(tick: TickRecord) -> bool:
        return tick.batch_size == size and not tick.prefill_tokens

    seconds = [
        later.at - earlier.at
        for earlier, later in itertools.pairwise(run.ticks)
        if is_full(earlier) and is_full(later) and later.number == earlier.number + 1
    ]
    if not seconds:
        raise SetupError(
            f"No two ticks in a row had {size} sequences at once, so there is no figure for this "
            "size; leave it out of --sizes, or give more memory with --set kv_tokens=N."
        )
    return statistics.median(seconds)
