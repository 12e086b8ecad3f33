"""`jitney bench overhead`: what a tick costs outside the forward pass, by part.

The production tick runs on this thread, with clocks around its scheduler and its backend. Only
ticks in which everybody generates count.

    pass      the backend's part: inputs, the forward pass, and the choice of tokens
    plan      choose who runs, and make the batch
    apply     take over the outcome
    rest      text, deltas, stop strings, records, statistics

Tests: tests/unit/lab/bench/test_strategies.py.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any  # Any: arguments and results of any call

from jitney.config import Settings
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import Mix
from jitney.engine.clock import SystemClock
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.tick import Tick
from jitney.errors import SetupError
from jitney.loading import load_backend, select_backend
from jitney.loading.compose import scheduler_settings
from jitney_lab.bench.in_process import UNLIMITED, for_bench
from jitney_lab.bench.report import Result
from jitney_lab.bench.workload import Say, fixed

PROMPT_COUNT = 32
COMPLETION_COUNT = 96
PARTS = ("plan", "apply", "rest")
COLUMNS = ("sequences", "tick ms", "pass ms", *(f"{part} ms" for part in PARTS), "outside the pass")


SETS = frozenset(UNLIMITED) | {"max_num_seqs", "mix", "backend_process"}
"""The settings that are not the user's here."""


def _timed(call: Callable[..., Any], part: str, seconds: dict[str, float]) -> Callable[..., Any]:
    """The same call, which adds its seconds to those of a part."""

    def timed(*arguments: object) -> object:
        started_at = time.perf_counter()
        result = call(*arguments)
        seconds[part] += time.perf_counter() - started_at
        return result

    return timed


def measure(settings: Settings, *, sizes: tuple[int, ...], seed: int, say: Say) -> Result:
    """The parts of a tick at every size, in the median of its ticks. Raises SetupError."""
    # One backend for all sizes: another one may be chosen for few sequences.
    chosen = select_backend(for_bench(settings, max_num_seqs=max(sizes))).name
    settings = for_bench(settings, backend=chosen)
    found = {}
    for size in sizes:
        say(f"{size} at once")
        found[size] = _parts(settings, size, seed)
    rows = []
    for size, parts in found.items():
        outside = 1 - parts["pass"] / parts["tick"]
        milliseconds = [f"{1e3 * parts[part]:.3f}" for part in ("tick", "pass", *PARTS)]
        rows.append((str(size), *milliseconds, f"{100 * outside:.1f} %"))
    return Result(
        name="overhead",
        title="What a tick costs outside the forward pass",
        columns=COLUMNS,
        rows=tuple(rows),
        figures={
            "backend": chosen,
            "load": {"prompt_count": PROMPT_COUNT, "completion_count": COMPLETION_COUNT},
            "seconds": found,
        },
    )


def _parts(settings: Settings, size: int, seed: int) -> dict[str, float]:
    changed = for_bench(
        settings,
        max_num_seqs=size,
        backend_process=False,
        # All prompts are computed in one tick, so that all generate at the same time.
        mix=Mix.DECODE_FIRST,
        max_num_batched_tokens=max(settings.max_num_batched_tokens, size * PROMPT_COUNT),
    )
    backend = load_backend(changed)
    try:
        limits = scheduler_settings(changed, backend.traits)
        seconds = dict.fromkeys(("plan", "apply", "pass"), 0.0)
        core = Scheduler(limits, backend.traits, backend.vocabulary.eos_tokens)
        for owner, name, part in (
            (core, "plan", "plan"),
            (core, "apply", "apply"),
            (backend, "execute", "pass"),
        ):
            setattr(owner, name, _timed(getattr(owner, name), part, seconds))
        tick = Tick(core, backend, SystemClock(), Observers())
        _submit(tick, size, seed)
        ticks = []
        while tick.has_work:
            decodes_before = core.snapshot().prefilling_count == 0
            for name in seconds:
                seconds[name] = 0.0
            started_at = time.perf_counter()
            tick.run()
            whole_s = time.perf_counter() - started_at
            if decodes_before and core.snapshot().running_count == size:
                ticks.append({"tick": whole_s, **seconds})
    finally:
        backend.close()
    if not ticks:
        raise SetupError(
            f"No tick had {size} sequences that generate, so there is no figure for this size; "
            "leave it out of --sizes, or give more memory with --set kv_tokens=N."
        )
    medians = {name: statistics.median(each[name] for each in ticks) for name in ticks[0]}
    known = sum(medians[name] for name in ("plan", "apply", "pass"))
    return {**medians, "rest": medians["tick"] - known}


def _submit(tick: Tick, size: int, seed: int) -> None:
    for job in fixed(size, PROMPT_COUNT, COMPLETION_COUNT, seed=seed, clients=size).jobs:
        request = job.request(job.tokens(seed, range(100, 200)))
        tick.submit(request, Mailbox(streams=True))
