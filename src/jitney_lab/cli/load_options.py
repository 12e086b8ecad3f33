"""The load that the options of `jitney bench serve` describe. No option goes unused in silence.

Tests: tests/unit/lab/cli/test_load_options.py.
"""

import math

from jitney.cli.failures import say
from jitney.cli.flags import own_flags
from jitney.errors import ConfigError
from jitney_lab.bench.datasets import Choosing, read_custom, read_sharegpt
from jitney_lab.bench.workload import RandomLengths, Workload, read_trace
from jitney_lab.cli.bench_result import (
    LENGTH_MAX,
    PROMPTS_MAX,
    RATE_MIN,
    check_number,
    tell_arrivals,
)
from jitney_lab.cli.serve_load_verb import (
    CUSTOM_OUTPUT_LEN,
    INPUT_LEN,
    NUM_PROMPTS,
    OUTPUT_LEN,
    PREFIX_COUNT,
    PREFIX_LEN,
    PREFIX_OUTPUT_LEN,
    SUFFIX_LEN,
    ServeLoadOptions,
)

TOKENS_MAX = 20_000_000
"""Each token of an answer has a time, and all prompts may be under way at once: with about 100
bytes each, this is two gigabytes."""

RANDOM, PREFIXES, CUSTOM, SHAREGPT = "random", "prefix_repetition", "custom", "sharegpt"
TRACE = "trace"
"""A file without the name of a dataset."""

OF_A_FILE = ("dataset_path", "num_prompts", "output_len", "disable_shuffle", "no_oversample")
USED = {
    RANDOM: (
        *("num_prompts", "input_len", "output_len", "random_input_len", "random_output_len"),
        *("range_ratio", "prefix_len"),
    ),
    PREFIXES: (
        *("num_prompts", "output_len", "prefix_repetition_prefix_len"),
        *("prefix_repetition_suffix_len", "prefix_repetition_num_prefixes"),
        "prefix_repetition_output_len",
    ),
    CUSTOM: (*OF_A_FILE, "custom_output_len", "skip_chat_template"),
    SHAREGPT: (*OF_A_FILE, "sharegpt_output_len", "skip_chat_template"),
    TRACE: ("dataset_path",),
}
"""The options that each dataset has a use for."""

TWICE = (
    ("input_len", "random_input_len"),
    ("output_len", "random_output_len"),
    ("output_len", "custom_output_len"),
    ("output_len", "sharegpt_output_len"),
    ("output_len", "prefix_repetition_output_len"),
)
"""Two names of one length."""

LENGTH = (1, LENGTH_MAX)
BOUNDS: dict[str, tuple[float, float]] = {
    "num_prompts": (1, PROMPTS_MAX),
    "input_len": LENGTH,
    "output_len": LENGTH,
    "random_input_len": LENGTH,
    "random_output_len": LENGTH,
    "sharegpt_output_len": LENGTH,
    "prefix_len": (0, LENGTH_MAX),
    "range_ratio": (0, 1),
    "prefix_repetition_prefix_len": LENGTH,
    "prefix_repetition_suffix_len": LENGTH,
    "prefix_repetition_num_prefixes": (1, PROMPTS_MAX),
    "prefix_repetition_output_len": LENGTH,
    "request_rate": (RATE_MIN, math.inf),
    "burstiness": (RATE_MIN, 1e6),
    "max_concurrency": (1, PROMPTS_MAX),
    "num_warmups": (0, PROMPTS_MAX),
}


def dataset_of(options: ServeLoadOptions) -> str:
    """The dataset that is meant, one of `USED`. Raises ConfigError."""
    name = options.dataset_name
    if name is None:
        return RANDOM if options.dataset_path is None else TRACE
    if name == "timed_trace":
        raise ConfigError(
            "--dataset-name timed_trace is not needed: without a name, --dataset-path is a trace "
            "with timestamp (in milliseconds), input_length and output_length in each line; "
            "leave it out."
        )
    if name not in USED or name == TRACE:
        known = (RANDOM, PREFIXES, CUSTOM, SHAREGPT)
        raise ConfigError(
            f"--dataset-name {name} is not taken here; there are {', '.join(known)}, and a trace "
            "as --dataset-path without a name."
        )
    return name


def workload_of(options: ServeLoadOptions) -> Workload:
    """The load that the options describe; a very long one is told. Raises ConfigError."""
    dataset = dataset_of(options)
    _check_numbers(options)
    _check_use(options, dataset)
    if dataset == TRACE:
        assert options.dataset_path is not None, "dataset_of saw a path"
        workload = read_trace(
            options.dataset_path,
            seed=options.seed,
            per_s=options.request_rate,
            burstiness=options.burstiness,
            say=say,
        )
        _check_size("The trace", workload.token_count, "use a part of it")
    elif dataset in (CUSTOM, SHAREGPT):
        workload = _from_file(options, dataset)
    else:
        workload = _drawn(options, _lengths(options, dataset))
    if options.burstiness is not None and (options.request_rate or math.inf) == math.inf:
        raise ConfigError(
            "--burstiness would not be used without --request-rate, because all requests are sent "
            "at once; give a rate, or leave it out."
        )
    tell_arrivals(workload.jobs[-1].at_s)
    return workload


def described(options: ServeLoadOptions) -> dict[str, object]:
    """What was asked for, for the result: nothing secret. The names are vLLM's where it has them.

    A rate that is None is that of the trace.
    """
    dataset = dataset_of(options)
    rate, burstiness = options.request_rate, options.burstiness
    load: dict[str, object] = {"dataset_name": dataset}
    if options.dataset_path is not None:
        load["dataset"] = options.dataset_path.name
    if dataset != TRACE:
        rate, burstiness = rate or math.inf, burstiness or 1.0
    if dataset in (RANDOM, PREFIXES):
        lengths = _lengths(options, dataset)
        load |= {
            "input_len": lengths.input_len,
            "output_len": lengths.output_len,
            "random_range_ratio": lengths.range_ratio,
            "random_prefix_len": lengths.prefix_len,
            "num_prefixes": lengths.prefix_groups,
        }
    elif dataset != TRACE:
        load["output_len"] = _file_output_len(options)
    # JSON has no word for infinity; this is vLLM's.
    rates = {"request_rate": "inf" if rate == math.inf else rate, "burstiness": burstiness}
    return {**rates, "load": load}


def flag_of(name: str) -> str:
    """How the option of this name is spelled."""
    return next(each.spelled[0] for each in own_flags(ServeLoadOptions) if each.name == name)


def _check_numbers(options: ServeLoadOptions) -> None:
    for name, (low, high) in BOUNDS.items():
        value = getattr(options, name)
        if value is not None:
            check_number(flag_of(name), value, low, high)
    if options.custom_output_len not in (None, -1):
        check_number("--custom-output-len", options.custom_output_len or 0, *LENGTH)


def _check_use(options: ServeLoadOptions, dataset: str) -> None:
    """Refuse what this dataset has no use for, and one length under two names."""
    used = USED[dataset]
    for name in dict.fromkeys(each for names in USED.values() for each in names):
        value = getattr(options, name)
        # A switch that is off is one that was not given. By identity: 0 equals False.
        if name not in used and value is not None and value is not False:
            place = "--dataset-path" if dataset == TRACE else f"--dataset-name {dataset}"
            why = ", whose lines are the requests with their lengths" if dataset == TRACE else ""
            raise ConfigError(
                f"{flag_of(name)} would not be used with {place}{why}; leave one of the two out."
            )
    for first, second in TWICE:
        if getattr(options, first) is not None and getattr(options, second) is not None:
            raise ConfigError(
                f"{flag_of(first)} and {flag_of(second)} are the same length; leave one out."
            )
    if "dataset_path" in used and options.dataset_path is None:
        raise ConfigError(f"--dataset-name {dataset} needs a file; name it with --dataset-path.")


def _lengths(options: ServeLoadOptions, dataset: str) -> RandomLengths:
    if dataset == PREFIXES:
        output_len = options.output_len or options.prefix_repetition_output_len
        return RandomLengths(
            input_len=options.prefix_repetition_suffix_len or SUFFIX_LEN,
            output_len=output_len or PREFIX_OUTPUT_LEN,
            prefix_len=options.prefix_repetition_prefix_len or PREFIX_LEN,
            prefix_groups=options.prefix_repetition_num_prefixes or PREFIX_COUNT,
        )
    return RandomLengths(
        input_len=options.input_len or options.random_input_len or INPUT_LEN,
        output_len=options.output_len or options.random_output_len or OUTPUT_LEN,
        range_ratio=options.range_ratio or 0.0,
        prefix_len=options.prefix_len or 0,
    )


def _drawn(options: ServeLoadOptions, lengths: RandomLengths) -> Workload:
    """Requests of random lengths. Raises ConfigError."""
    count = options.num_prompts or NUM_PROMPTS
    drawn = (lengths.input_len + lengths.output_len) * (1 + lengths.range_ratio)
    wanted = math.ceil((lengths.prefix_len + drawn) * count)
    _check_size("The load", wanted, "lower --num-prompts, --input-len or --output-len")
    return lengths.workload(
        count,
        per_s=options.request_rate or math.inf,
        burstiness=options.burstiness or 1.0,
        seed=options.seed,
    )


def _from_file(options: ServeLoadOptions, dataset: str) -> Workload:
    """Requests with the prompts of a file. Raises ConfigError."""
    path, output_len = options.dataset_path, _file_output_len(options)
    assert path is not None, "_check_use refuses such a dataset without a file"
    if dataset == CUSTOM:
        prompts, count = read_custom(path, output_len, CUSTOM_OUTPUT_LEN), options.num_prompts
    else:
        prompts, count = read_sharegpt(path, output_len), options.num_prompts or NUM_PROMPTS
    choosing = Choosing(
        count=count,
        shuffles=not options.disable_shuffle,
        repeats=not options.no_oversample,
        per_s=options.request_rate or math.inf,
        burstiness=options.burstiness or 1.0,
        seed=options.seed,
    )
    workload = choosing.workload(path.stem, prompts)
    _check_size("The load", workload.token_count, "lower --num-prompts or --output-len")
    return workload


def _file_output_len(options: ServeLoadOptions) -> int | None:
    return options.output_len or options.custom_output_len or options.sharegpt_output_len


def _check_size(what: str, token_count: int, advice: str) -> None:
    """Refuse a load whose prompts and times would not fit into memory. Raises ConfigError."""
    if token_count > TOKENS_MAX:
        raise ConfigError(
            f"{what} has {token_count:,} tokens in all prompts and answers, and at most "
            f"{TOKENS_MAX:,} are measured in one run; {advice}."
        )
