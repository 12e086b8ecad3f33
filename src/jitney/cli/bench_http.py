"""`jitney bench serve` and `compare`: load over HTTP, and other systems. Main thread.

Tests: tests/e2e/test_bench.py.
"""

import math
from dataclasses import replace

from rich.console import Console

from jitney.bench import serve_load
from jitney.bench.compare import Comparison, files_of
from jitney.bench.http_target import HttpTarget, check_address, check_key, served_model
from jitney.bench.report import Result
from jitney.bench.timing import RequestTimes, read_goodput
from jitney.bench.workload import RandomLengths, Workload, read_trace
from jitney.cli.bench_result import (
    LENGTH_MAX,
    PROMPTS_MAX,
    RATE_MIN,
    RUNS_MAX,
    check_folder,
    check_number,
    finish,
    measure_and_finish,
    read_counts,
    seed_of,
)
from jitney.cli.bench_verbs import (
    INPUT_LEN,
    NUM_PROMPTS,
    OUTPUT_LEN,
    CompareOptions,
    ServeLoadOptions,
)
from jitney.cli.failures import say
from jitney.cli.progress_bar import progress_bar
from jitney.config import Resolved
from jitney.errors import ConfigError

TOKENS_MAX = 20_000_000
"""Each token of an answer has a time, and all prompts may be under way at once: with about 100
bytes each, this is two gigabytes."""


def run_compare(options: CompareOptions, resolved: Resolved) -> None:
    """Run `jitney bench compare`."""
    check_number("--runs", options.runs, 1, RUNS_MAX)
    clients = read_counts("--clients", options.clients)

    def measure() -> Result:
        files, seed = files_of(resolved.settings, say), seed_of(resolved)
        return Comparison(resolved, files, runs=options.runs, seed=seed, say=say).run(clients)

    measure_and_finish(measure, resolved, options.output)


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
    with progress_bar(Console(stderr=True)) as bar:
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
    told = replace(result, figures=_load(options) | result.figures)
    finish(told, options.seed, options.output)


def _load(options: ServeLoadOptions) -> dict[str, object]:
    """What was asked for, for the result: nothing secret. The names are vLLM's where it has them.

    A rate that is None is that of the trace.
    """
    rate, burstiness = options.request_rate, options.burstiness
    load: dict[str, object]
    if options.dataset_path is not None:
        load = {"dataset": options.dataset_path.name}
    else:
        rate, burstiness = rate or math.inf, burstiness or 1.0
        load = {
            "input_len": options.input_len or INPUT_LEN,
            "output_len": options.output_len or OUTPUT_LEN,
            "random_range_ratio": options.range_ratio or 0.0,
            "random_prefix_len": options.prefix_len or 0,
        }
    return {
        # JSON has no word for infinity; this is vLLM's.
        "request_rate": "inf" if rate == math.inf else rate,
        "burstiness": burstiness,
        # A query of the path may hold a secret.
        "endpoint": options.endpoint.partition("?")[0],
        "ignore_eos": options.ignore_eos,
        "load": load,
    }


def _workload(options: ServeLoadOptions) -> Workload:
    """The load that the options describe. Raises ConfigError."""
    lengths = {
        "--num-prompts": (options.num_prompts, 1, PROMPTS_MAX),
        "--input-len": (options.input_len, 1, LENGTH_MAX),
        "--output-len": (options.output_len, 1, LENGTH_MAX),
        "--random-prefix-len": (options.prefix_len, 0, LENGTH_MAX),
        "--random-range-ratio": (options.range_ratio, 0, 1),
    }
    times = {
        "--request-rate": (options.request_rate, RATE_MIN, math.inf),
        "--burstiness": (options.burstiness, RATE_MIN, 1e6),
        "--max-concurrency": (options.max_concurrency, 1, PROMPTS_MAX),
    }
    for flag, (value, low, high) in (lengths | times).items():
        if value is not None:
            check_number(flag, value, low, high)
    if options.dataset_path is None:
        workload = _random(options)
    else:
        unused = [flag for flag, (value, _, _) in lengths.items() if value is not None]
        if unused:
            raise ConfigError(
                f"{unused[0]} would not be used with --dataset-path, whose lines are the requests "
                "with their lengths; leave one of the two out."
            )
        workload = read_trace(
            options.dataset_path,
            seed=options.seed,
            per_s=options.request_rate,
            burstiness=options.burstiness,
            say=say,
        )
        _check_size("The trace", workload.token_count, "use a part of it")
    if options.burstiness is not None and (options.request_rate or math.inf) == math.inf:
        raise ConfigError(
            "--burstiness would not be used without --request-rate, because all requests are sent "
            "at once; give a rate, or leave it out."
        )
    return workload


def _random(options: ServeLoadOptions) -> Workload:
    """Requests of random lengths. Raises ConfigError."""
    count = options.num_prompts or NUM_PROMPTS
    lengths = RandomLengths(
        input_len=options.input_len or INPUT_LEN,
        output_len=options.output_len or OUTPUT_LEN,
        range_ratio=options.range_ratio or 0.0,
        prefix_len=options.prefix_len or 0,
    )
    drawn = (lengths.input_len + lengths.output_len) * (1 + lengths.range_ratio)
    wanted = math.ceil((lengths.prefix_len + drawn) * count)
    _check_size("The load", wanted, "lower --num-prompts, --input-len or --output-len")
    return lengths.workload(
        count,
        per_s=options.request_rate or math.inf,
        burstiness=options.burstiness or 1.0,
        seed=options.seed,
    )


def _check_size(what: str, token_count: int, advice: str) -> None:
    """Refuse a load whose prompts and times would not fit into memory. Raises ConfigError."""
    if token_count > TOKENS_MAX:
        raise ConfigError(
            f"{what} has {token_count:,} tokens in all prompts and answers, and at most "
            f"{TOKENS_MAX:,} are measured in one run; {advice}."
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
