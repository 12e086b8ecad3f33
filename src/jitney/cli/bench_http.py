"""`jitney bench serve` and `compare`: load over HTTP, and other systems. Main thread.

Tests: tests/e2e/test_bench.py.
"""

import math

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jitney.bench import serve_load
from jitney.bench.compare import Comparison, files_of
from jitney.bench.http_target import HttpTarget, check_address, check_key, served_model
from jitney.bench.timing import RequestTimes, read_goodput
from jitney.bench.workload import RandomLengths, Workload, read_trace
from jitney.cli.bench_result import (
    PROMPTS_MAX,
    RATE_MIN,
    RUNS_MAX,
    check_folder,
    check_number,
    finish,
    read_counts,
    seed_of,
)
from jitney.cli.bench_verbs import CompareOptions, ServeLoadOptions
from jitney.cli.failures import say
from jitney.config import Resolved
from jitney.errors import ConfigError

LENGTH_MAX = 1_000_000
TOKENS_MAX = 20_000_000
"""Each token of an answer has a time, and all prompts may be under way at once: with about 100
bytes each, this is two gigabytes."""


def run_compare(options: CompareOptions, resolved: Resolved) -> None:
    """Run `jitney bench compare`."""
    check_folder(options.output)
    check_number("--runs", options.runs, 1, RUNS_MAX)
    clients = read_counts("--clients", options.clients)
    files = files_of(resolved.settings)
    comparison = Comparison(resolved, files, runs=options.runs, seed=seed_of(resolved), say=say)
    result = comparison.run(clients)
    finish(result, seed_of(resolved), options.output)


def run_serve(options: ServeLoadOptions, resolved: Resolved) -> None:
    """Run `jitney bench serve`."""
    del resolved
    check_folder(options.output)
    check_address(options.base_url, options.endpoint)
    check_key(options.api_key)
    workload = _workload(options)
    percentiles = _percentiles(options.metric_percentiles)
    goodput = read_goodput(options.goodput)
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
    check_number("--num-prompts", options.num_prompts, 1, PROMPTS_MAX)
    check_number("--input-len", options.input_len, 1, LENGTH_MAX)
    check_number("--output-len", options.output_len, 1, LENGTH_MAX)
    check_number("--random-prefix-len", options.prefix_len, 0, LENGTH_MAX)
    check_number("--random-range-ratio", options.range_ratio, 0, 1)
    check_number("--request-rate", options.request_rate, RATE_MIN, math.inf)
    check_number("--burstiness", options.burstiness, RATE_MIN, 1e6)
    if options.max_concurrency is not None:
        check_number("--max-concurrency", options.max_concurrency, 1, PROMPTS_MAX)
    if options.dataset_path is not None:
        trace = read_trace(options.dataset_path, seed=options.seed)
        _check_size("The trace", trace.token_count, "use a part of it")
        return trace
    each = options.prefix_len + (options.input_len + options.output_len) * (1 + options.range_ratio)
    wanted = math.ceil(each * options.num_prompts)
    _check_size("The load", wanted, "lower --num-prompts, --input-len or --output-len")
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


def _check_size(what: str, token_count: int, advice: str) -> None:
    """Refuse a load whose prompts and times would not fit into memory. Raises ConfigError."""
    if token_count > TOKENS_MAX:
        raise ConfigError(
            f"{what} has {token_count:,} tokens in all prompts and answers, and at most "
            f"{TOKENS_MAX:,} are measured in one run; {advice}."
        )


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


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
