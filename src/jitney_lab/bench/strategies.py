"""`jitney bench strategies`: one workload through every way of batching, on the same model.

sequential   one request at a time
static       a group starts full or after a second, and all of it ends before the next
dynamic      the same with a wait of 50 ms
adaptive     the same, and smaller groups while ticks are slow
windowed     continuous, but newcomers are gathered for 50 ms
continuous   requests join and leave at any tick
"""

from dataclasses import replace
from functools import partial

from jitney.config import Settings
from jitney.core.scheduler_settings import Strategy
from jitney.errors import SetupError
from jitney.loading import select_backend
from jitney_lab.bench.in_process import JOINING, UNLIMITED, EngineRun, engine_target, for_bench
from jitney_lab.bench.report import Result, spread
from jitney_lab.bench.steal import CalmParts
from jitney_lab.bench.timing import summary
from jitney_lab.bench.workload import Say, Workload, equal, mixed, twenty_clients

WINDOW_MS = 50.0
STATIC_MS = 1000.0
"""Without a timer the last requests of a workload would wait for a full group."""

LOAD_SHARE = 0.9
"""The Poisson stream brings this much of what the machine can do: queues form, and end."""

SEQUENTIAL = "sequential"
STATIC = "static"
CONTINUOUS = "continuous"

CHANGES: dict[str, dict[str, object]] = {
    SEQUENTIAL: {**JOINING, "max_num_seqs": 1},
    STATIC: {**JOINING, "strategy": Strategy.STATIC, "max_wait_ms": STATIC_MS},
    "dynamic": {**JOINING, "strategy": Strategy.DYNAMIC},
    "adaptive": {**JOINING, "strategy": Strategy.ADAPTIVE},
    "windowed": {**JOINING, "max_wait_ms": WINDOW_MS},
    CONTINUOUS: JOINING,
}
"""The settings of each; all others are the user's."""

SETS = frozenset(UNLIMITED) | JOINING.keys()
"""The settings that are not the user's here."""

IN_TURN: tuple[str, ...] = (SEQUENTIAL, CONTINUOUS, STATIC, "dynamic", "adaptive", "windowed")
"""The order of measuring: those that continuous is compared with come right before and after it, so
that what changes on the machine meanwhile counts least."""

QUICK = IN_TURN[:3]
"""Those of `--quick`: what it is about is in them."""

COLUMNS = (
    *("workload", "strategy", "requests/s", "tokens/s", "p50 s", "p95 s", "p99 s"),
    *("first token p50 s", "between tokens p50 ms", "mean batch", "slot-steps wasted"),
)


def fitting_rate(settings: Settings, seed: int, say: Say) -> float:
    """Requests per second that keep this machine busy, from a short run of the mixed lengths."""
    slots = settings.max_num_seqs
    say("a short run, to find a fitting rate")
    with engine_target(for_bench(settings, **CHANGES[CONTINUOUS])) as target:
        run = target.run(mixed(3 * slots, seed=seed, clients=2 * slots))
    _figures(run, CONTINUOUS, "mixed")
    return LOAD_SHARE * len(run.requests) / run.duration_s


def workloads(count: int, per_s: float, *, seed: int, slots: int) -> list[Workload]:
    """Mixed lengths as a Poisson stream and in a closed loop, equal lengths, twenty clients.

    The equal ones are full batches: four, or two where there are few requests.
    """
    batch_count = 2 if count < 4 * slots else 4
    return [
        mixed(count, seed=seed, per_s=per_s),
        replace(mixed(count, seed=seed, clients=2 * slots), name="mixed closed"),
        equal(batch_count * slots, seed=seed),
        twenty_clients(seed=seed),
    ]


def measure(
    settings: Settings, loads: list[Workload], *, names: tuple[str, ...], runs: int, say: Say
) -> Result:
    """Every workload under each of these strategies, so many times, strategies in turn.

    Raises SetupError if all requests of a run failed.
    """
    # One backend for all: another one may be chosen for one request at a time.
    settings = for_bench(settings, backend=select_backend(for_bench(settings)).name)
    figures: dict[str, dict[str, list[dict[str, object]]]] = {
        load.name: {name: [] for name in CHANGES if name in names} for load in loads
    }
    failures: list[str] = []
    calm = CalmParts(say)
    for number in range(runs):
        for name in names if number % 2 == 0 else reversed(names):
            changed = for_bench(settings, **CHANGES[name])
            with engine_target(changed) as target:
                for load in loads:
                    say(f"run {number + 1} of {runs}, {name}, {load.name}")
                    run = calm.measure(partial(target.run, load))
                    figures[load.name][name].append(_figures(run, name, load.name))
                    if run.failures:
                        failures.append(
                            f"{load.name}, {name}, run {number + 1}: {len(run.failures)} of "
                            f"{len(run.requests)} requests failed, and its figures are of the "
                            f"others; the first reason: {run.failures[0]}"
                        )
    rows = [
        _row(load, name, found)
        for load, strategies in figures.items()
        for name, found in strategies.items()
    ]
    return Result(
        name="strategies",
        title=f"Strategies, {settings.backend}, {settings.max_num_seqs} slots, median of {runs}",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(*(_note(load, strategies) for load, strategies in figures.items()), *failures),
        figures={
            "runs": runs,
            "stolen_share": calm.share,
            "backend": settings.backend,
            "workloads": figures,
            "failures": failures,
        },
    )


def _figures(run: EngineRun, name: str, load: str) -> dict[str, object]:
    """Raises SetupError if all requests failed."""
    if len(run.failures) == len(run.requests):
        raise SetupError(
            f"Every request of the workload {load} failed under {name}; the first reason: "
            f"{run.failures[0]}"
        )
    return {
        **summary(run.requests, run.duration_s),
        "mean_batch": run.mean_batch,
        "slot_steps_wasted": run.wasted,
    }


def _row(load: str, name: str, found: list[dict[str, object]]) -> tuple[str, ...]:
    def figure(key: str, scale: float = 1.0, digits: int = 2) -> str:
        known = [float(str(each[key])) * scale for each in found if each[key] is not None]
        return spread(known, digits) if known else "-"

    failed = sum(int(str(each["failed"])) for each in found)
    return (
        load,
        f"{name} ({failed} failed)" if failed else name,
        figure("request_throughput"),
        figure("output_throughput", digits=0),
        figure("p50_e2el_ms", 1e-3),
        figure("p95_e2el_ms", 1e-3),
        figure("p99_e2el_ms", 1e-3),
        figure("p50_ttft_ms", 1e-3),
        figure("p50_itl_ms", digits=1),
        figure("mean_batch", digits=1),
        figure("slot_steps_wasted", 100, 0) + " %",
    )


def _note(load: str, strategies: dict[str, list[dict[str, object]]]) -> str:
    """Continuous against static and sequential, run by run."""

    def ratios(name: str, key: str) -> list[float]:
        pairs = zip(strategies[CONTINUOUS], strategies[name], strict=True)
        return [float(str(ours[key])) / float(str(theirs[key])) for ours, theirs in pairs]

    return (
        f"{load}: continuous against static: p95 {spread(ratios(STATIC, 'p95_e2el_ms'))}, "
        f"tokens/s {spread(ratios(STATIC, 'output_throughput'))}; against sequential: tokens/s "
        f"{spread(ratios(SEQUENTIAL, 'output_throughput'))}."
    )
