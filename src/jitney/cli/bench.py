"""`jitney bench`: measures this machine, other systems on it, and running servers. Main thread.

Progress goes to standard error; tables and the last line, which is JSON, to standard output.

Tests: tests/e2e/test_bench.py.
"""

import json
import math
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jitney.bench import overhead, plots, scaling, strategies
from jitney.bench.report import Result, document, show, write_json
from jitney.bench.timing import read_goodput
from jitney.bench.workload import RandomLengths, Workload, read_trace
from jitney.cli.bench_verbs import (
    CompareOptions,
    OverheadOptions,
    ScalingOptions,
    ServeLoadOptions,
    StrategiesOptions,
)
from jitney.cli.failures import say
from jitney.config import Resolved
from jitney.errors import ConfigError, SetupError

RUNS_MAX = 1000
PROMPTS_MAX = 1_000_000
LENGTH_MAX = 1_000_000
RATE_MIN = 1e-6
EXTRA = "pip install 'jitney[bench]'"


def run_strategies(options: StrategiesOptions, resolved: Resolved) -> None:
    """Run `jitney bench strategies`."""
    _check("--runs", options.runs, 1, RUNS_MAX)
    _check("--num-prompts", options.num_prompts, 1, PROMPTS_MAX)
    if options.request_rate is not None:
        _check("--request-rate", options.request_rate, RATE_MIN, math.inf)
    settings = resolved.settings
    slots = settings.max_num_seqs
    per_s = options.request_rate or strategies.fitting_rate(settings, options.seed, say)
    loads = strategies.workloads(options.num_prompts, per_s, seed=options.seed, slots=slots)
    result = strategies.measure(settings, loads, runs=options.runs, say=say)
    finish(result, options.seed, options.output)


def run_scaling(options: ScalingOptions, resolved: Resolved) -> None:
    """Run `jitney bench scaling`."""
    _check("--runs", options.runs, 1, RUNS_MAX)
    sizes = _counts("--sizes", options.sizes)
    if len(sizes) < 2:
        raise ConfigError(f"--sizes {options.sizes} is one size, and a line needs two; add one.")
    result = scaling.measure(
        resolved.settings,
        sizes=sizes,
        runs=options.runs,
        seed=options.seed,
        say=say,
    )
    finish(result, options.seed, options.output)


def run_overhead(options: OverheadOptions, resolved: Resolved) -> None:
    """Run `jitney bench overhead`."""
    settings = resolved.settings
    sizes = _counts("--sizes", options.sizes)
    result = overhead.measure(settings, sizes=sizes, seed=options.seed, say=say)
    finish(result, options.seed, options.output)


def run_compare(options: CompareOptions, resolved: Resolved) -> None:
    """Run `jitney bench compare`."""
    _check("--runs", options.runs, 1, RUNS_MAX)
    clients = _counts("--clients", options.clients)
    _need("httpx")
    # Loaded only here: they need a package of the extra.
    from jitney.bench.compare import Comparison, model_of

    settings = resolved.settings
    comparison = Comparison(
        settings, model_of(settings), runs=options.runs, seed=options.seed, say=say
    )
    result = comparison.run(clients)
    finish(result, options.seed, options.output)


def run_serve(options: ServeLoadOptions, resolved: Resolved) -> None:
    """Run `jitney bench serve`."""
    del resolved
    workload = _workload(options)
    percentiles = _percentiles(options.metric_percentiles)
    goodput = read_goodput(options.goodput)
    _need("httpx")
    # Loaded only here: they need a package of the extra.
    from jitney.bench import serve_load
    from jitney.bench.http_target import HttpTarget, served_model
    from jitney.bench.timing import RequestTimes

    target = HttpTarget(
        base_url=options.base_url,
        endpoint=options.endpoint,
        model=options.model_name or served_model(options.base_url, options.api_key),
        seed=options.seed,
        api_key=options.api_key,
        ignores_eos=options.ignore_eos,
    )
    with _bar() as bar:
        task = bar.add_task("requests", total=len(workload.jobs))

        def ended(times: RequestTimes) -> None:
            bar.advance(task)

        result = serve_load.measure(
            target,
            workload,
            max_concurrency=options.max_concurrency,
            percentiles=percentiles,
            goodput=goodput,
            ended=ended,
        )
    finish(result, options.seed, options.output)


def _workload(options: ServeLoadOptions) -> Workload:
    """The load that the options describe. Raises ConfigError."""
    _check("--num-prompts", options.num_prompts, 1, PROMPTS_MAX)
    _check("--input-len", options.input_len, 1, LENGTH_MAX)
    _check("--output-len", options.output_len, 1, LENGTH_MAX)
    _check("--random-prefix-len", options.prefix_len, 0, LENGTH_MAX)
    _check("--random-range-ratio", options.range_ratio, 0, 1)
    _check("--request-rate", options.request_rate, RATE_MIN, math.inf)
    _check("--burstiness", options.burstiness, RATE_MIN, 1e6)
    if options.max_concurrency is not None:
        _check("--max-concurrency", options.max_concurrency, 1, PROMPTS_MAX)
    if options.dataset_path is not None:
        return read_trace(options.dataset_path, seed=options.seed)
    lengths = RandomLengths(
        input_len=options.input_len,
        output_len=options.output_len,
        range_ratio=options.range_ratio,
        prefix_len=options.prefix_len,
    )
    return lengths.workload(
        options.num_prompts,
        per_s=options.request_rate,
        burstiness=options.burstiness,
        seed=options.seed,
    )


def finish(result: Result, seed: int, folder: Path | None) -> None:
    """Show a result, write and draw it if a folder is given, and end with one JSON line."""
    show(result)
    content = document(result, seed)
    if folder is not None:
        paths = [write_json(content, folder)]
        if plots.is_possible():
            paths += plots.draw(content, folder)
        else:
            say(f"No plot was drawn: matplotlib is not installed; {EXTRA}.")
        say(f"Written: {', '.join(map(str, paths))}.")
    sys.stdout.write(json.dumps(content) + "\n")


def _need(name: str) -> None:
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise SetupError(f"This command needs the package {name}, which is missing; {EXTRA}.")


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _check(flag: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside of its range. Raises ConfigError."""
    # Written so that NaN is refused too.
    if not low <= value <= high:
        raise ConfigError(f"{flag} is {value:g}; expected a number from {low:g} to {high:g}.")


def _counts(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, each once, smallest first."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1 or found[-1] > strategies.SLOTS_MAX:
        raise ConfigError(
            f"{flag} {text} is not a list of numbers from 1 to {strategies.SLOTS_MAX}; "
            "for example 1,4,16."
        )
    return tuple(found)


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = (math.nan,)
    if not all(0 < share < 100 for share in found):
        raise ConfigError(
            f"--metric-percentiles {text} is not a list of numbers between 0 and 100; "
            "for example 50,95,99."
        )
    return found
