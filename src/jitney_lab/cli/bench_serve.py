"""`jitney bench serve`: load on a running server. Main thread.

Tests: tests/unit/lab/cli/test_bench_serve.py and tests/e2e/test_bench.py.
"""

import math

from rich.console import Console

from jitney.cli.failures import say
from jitney.cli.progress_bar import progress_bar
from jitney.cli.trace import server_key
from jitney.config import Resolved
from jitney.errors import ConfigError
from jitney_lab.bench import serve_load
from jitney_lab.bench.http_target import HttpTarget, check_address, served_model
from jitney_lab.bench.timing import METRICS, RequestTimes, read_goodput
from jitney_lab.bench.workload import Workload, random_lengths, read_trace
from jitney_lab.cli import bounds
from jitney_lab.cli.bench_result import check_folder, finish
from jitney_lab.cli.bench_verbs import INPUT_LEN, NUM_PROMPTS, OUTPUT_LEN, ServeLoadOptions

TOKENS_MAX = 20_000_000
"""Each token of an answer has a time, and all prompts may be under way at once: with about 100
bytes each, this is two gigabytes."""


def run_serve(options: ServeLoadOptions, resolved: Resolved) -> None:
    """Run `jitney bench serve`."""
    check_folder(options.output)
    goodput = read_goodput(options.goodput, METRICS)
    workload, load = workload_of(options)
    target = target_of(options)
    with progress_bar(Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=len(workload.jobs))

        def advance(times: RequestTimes) -> None:
            bar.advance(task)

        result = serve_load.measure(
            target, workload, goodput, advance, max_concurrency=options.max_concurrency
        )
    finish(result, options.seed, options.output, load)


def workload_of(options: ServeLoadOptions) -> tuple[Workload, dict[str, object]]:
    """The load that the options describe, and how the result names it. Raises ConfigError.

    A very long one is announced.
    """
    rate = options.request_rate
    _check_numbers(options)
    if options.dataset_path is not None:
        path = options.dataset_path
        workload = read_trace(path, seed=options.seed, per_s=rate, say=say)
        load: dict[str, object] = {"dataset": path.name}
        _check_size(workload.token_count, "use a part of the trace")
    else:
        input_len, output_len = options.input_len or INPUT_LEN, options.output_len or OUTPUT_LEN
        count, rate = options.num_prompts or NUM_PROMPTS, rate or math.inf
        _check_size(
            count * (input_len + output_len), "lower --num-prompts, --input-len or --output-len"
        )
        workload = random_lengths(count, input_len, output_len, per_s=rate, seed=options.seed)
        load = {"input_len": input_len, "output_len": output_len}
    bounds.announce_arrivals(workload.jobs[-1].at_s)
    # JSON has no word for infinity; this is vLLM's. A rate that is None is that of the trace.
    return workload, {"request_rate": "inf" if rate == math.inf else rate, "load": load}


def _check_numbers(options: ServeLoadOptions) -> None:
    of_random = {
        "--num-prompts": (options.num_prompts, bounds.PROMPTS_MAX),
        "--input-len": (options.input_len, bounds.LENGTH_MAX),
        "--output-len": (options.output_len, bounds.LENGTH_MAX),
    }
    for flag, (value, high) in of_random.items():
        bounds.check(flag, value, 1, high)
        if value is not None and options.dataset_path is not None:
            raise ConfigError(
                f"{flag} would not be used with --dataset-path, whose lines are the requests with "
                "their lengths; leave one of the two out."
            )
    bounds.check("--max-concurrency", options.max_concurrency, 1, bounds.PROMPTS_MAX)
    bounds.check("--request-rate", options.request_rate, bounds.RATE_MIN, math.inf)


def _check_size(token_count: int, advice: str) -> None:
    """Refuse a load whose prompts and times would not fit into memory. Raises ConfigError."""
    if token_count > TOKENS_MAX:
        raise ConfigError(
            f"The load has {token_count:,} tokens in all prompts and answers, and at most "
            f"{TOKENS_MAX:,} are measured in one run; {advice}."
        )


def target_of(options: ServeLoadOptions) -> HttpTarget:
    """The server, and how it is asked. Raises a SetupError."""
    check_address(options.base_url, options.endpoint)
    key = server_key(options.api_key, options.base_url)
    return HttpTarget(
        base_url=options.base_url,
        endpoint=options.endpoint,
        model=options.model_name or served_model(options.base_url, key),
        seed=options.seed,
        api_key=key,
        ignores_eos=options.ignore_eos,
    )
