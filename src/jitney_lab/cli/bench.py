"""`jitney bench strategies`, `scaling`, `stalls`, `overhead`: measure an engine here. Main thread.

Tests: tests/unit/lab/cli/test_bench.py and tests/e2e/test_bench.py.
"""

from dataclasses import replace
from functools import partial

from jitney.config import Resolved, Settings
from jitney.errors import ConfigError
from jitney_lab.bench import overhead, scaling, stalls, strategies
from jitney_lab.bench.report import Result
from jitney_lab.bench.workload import Say, Workload, uneven
from jitney_lab.cli import bench_verbs, bounds
from jitney_lab.cli.bench_result import measure_and_finish

ENGINE_PROMPTS_MAX = 100_000
"""A record of each tick with all of its members is kept until a workload ends: a few hundred
megabytes for so many requests."""


def run_strategies(options: bench_verbs.StrategiesOptions, resolved: Resolved) -> None:
    """Run `jitney bench strategies`."""
    default = 1 if options.quick else bench_verbs.RUNS_DEFAULT
    runs = default if options.runs is None else options.runs
    count = options.num_prompts if options.num_prompts is not None else bench_verbs.MIXED_PROMPTS
    bounds.check("--runs", runs, 1, bounds.RUNS_MAX)
    bounds.check("--num-prompts", count, 1, ENGINE_PROMPTS_MAX)
    bounds.check("--request-rate", options.request_rate, bounds.RATE_MIN, bounds.RATE_MAX)
    if options.quick and (options.num_prompts, options.request_rate) != (None, None):
        raise ConfigError(
            "--quick has a load of its own; leave out --num-prompts and --request-rate, or --quick."
        )

    def measure(settings: Settings, *, seed: int, say: Say) -> Result:
        slots, names, per_s = settings.max_num_seqs, strategies.IN_TURN, options.request_rate
        if options.quick:
            loads, names = [uneven(slots, seed=seed)], strategies.QUICK
        else:
            per_s = per_s or strategies.fitting_rate(settings, seed, say)
            loads = loads_of(count, runs, per_s, seed=seed, slots=slots)
        result = strategies.measure(settings, loads, runs=runs, say=say, names=names)
        load = {"num_prompts": len(loads[0].jobs), "request_rate": per_s, "slots": slots}
        return replace(result, figures={"load": load, **result.figures})

    measure_and_finish(measure, resolved, options.output, strategies.SETS)


def loads_of(count: int, runs: int, per_s: float, *, seed: int, slots: int) -> list[Workload]:
    """The loads of `jitney bench strategies`; very long ones are announced."""
    loads = strategies.workloads(count, per_s, seed=seed, slots=slots)
    once_s = sum(load.jobs[-1].at_s for load in loads)
    bounds.announce_arrivals(runs * len(strategies.CHANGES) * once_s)
    return loads


def run_scaling(options: bench_verbs.ScalingOptions, resolved: Resolved) -> None:
    """Run `jitney bench scaling`."""
    bounds.check("--runs", options.runs, 1, bounds.RUNS_MAX)
    sizes = bounds.read_counts("--sizes", options.sizes)
    if len(sizes) < 2:
        raise ConfigError(f"--sizes {options.sizes} is one size, and a line needs two; add one.")
    measure = partial(scaling.measure, sizes=sizes, runs=options.runs)
    measure_and_finish(measure, resolved, options.output, scaling.SETS)


def run_stalls(options: bench_verbs.StallsOptions, resolved: Resolved) -> None:
    """Run `jitney bench stalls`."""
    bounds.check("--runs", options.runs, 1, bounds.RUNS_MAX)
    bounds.check("--input-len", options.input_len, 1, bounds.LENGTH_MAX)
    measure = partial(stalls.measure, prompt_count=options.input_len, runs=options.runs)
    measure_and_finish(measure, resolved, options.output, stalls.SETS)


def run_overhead(options: bench_verbs.OverheadOptions, resolved: Resolved) -> None:
    """Run `jitney bench overhead`."""
    measure = partial(overhead.measure, sizes=bounds.read_counts("--sizes", options.sizes))
    measure_and_finish(measure, resolved, options.output, overhead.SETS)
