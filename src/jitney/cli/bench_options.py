"""The options of `jitney bench`, one frozen dataclass for each of its commands.

Those of `serve` have the names of `vllm bench serve`. Imports nothing heavy.

Tests: tests/unit/cli/test_flags.py and tests/e2e/test_bench.py.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from jitney.cli.flags import COMMAND, option
from jitney.cli.verbs import SERVER_URL

LOAD = "Load"
OUTPUT = "Output"

SEED = option(COMMAND, "Lengths, prompts and arrivals come from it.", 0, metavar="N")
RUNS = option(COMMAND, "How often everything is measured, in turn.", 3, metavar="N")
FOLDER = option(
    OUTPUT,
    "A folder for the result as JSON and its plots (PNG, SVG).",
    spelled=("--output", "-o"),
    metavar="FOLDER",
    type=Path,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategiesOptions:
    """`jitney bench strategies`."""

    num_prompts: int = option(LOAD, "Requests of the mixed workloads.", 96, metavar="N")
    request_rate: float | None = option(
        LOAD,
        "Requests per second of the Poisson stream. Default: nine tenths of what is measured as "
        "possible here.",
        metavar="X",
        type=float,
    )
    runs: int = RUNS
    seed: int = SEED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """`jitney bench scaling`."""

    sizes: str = option(
        LOAD, "Batch sizes, with commas. Default: 1 to 64.", "1,2,4,8,16,32,64", metavar="N,..."
    )
    runs: int = RUNS
    seed: int = SEED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadOptions:
    """`jitney bench overhead`."""

    sizes: str = option(
        LOAD, "Batch sizes, with commas. Default: 1,16,64.", "1,16,64", metavar="N,..."
    )
    seed: int = SEED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """`jitney bench compare`."""

    clients: str = option(
        LOAD, "Clients at once, with commas. Default: 1,4,16,64.", "1,4,16,64", metavar="N,..."
    )
    runs: int = RUNS
    seed: int = SEED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLoadOptions:
    """`jitney bench serve`."""

    base_url: str = option(COMMAND, "Where the server is.", SERVER_URL, metavar="URL")
    endpoint: str = option(
        COMMAND,
        "The path of the requests; with `chat` in it they are chats. Default: /v1/completions.",
        "/v1/completions",
        metavar="PATH",
    )
    served: str | None = option(
        COMMAND,
        "The name of the model. Default: the first one that the server lists.",
        spelled=("--model",),
        metavar="NAME",
    )
    api_key: str | None = option(COMMAND, "A key of the server.", metavar="TEXT")
    dataset_path: Path | None = option(
        LOAD,
        "A JSONL trace: timestamp (ms), input_length and output_length in each line. "
        "Default: random lengths.",
        metavar="FILE",
        type=Path,
    )
    num_prompts: int = option(LOAD, "How many requests.", 100, metavar="N")
    input_len: int = option(LOAD, "Tokens of a prompt, about.", 128, metavar="N")
    output_len: int = option(LOAD, "Tokens of an answer.", 64, metavar="N")
    range_ratio: float = option(
        LOAD,
        "Lengths vary by up to this share. Default: 0.",
        0.0,
        spelled=("--random-range-ratio",),
        metavar="SHARE",
        type=float,
    )
    prefix_len: int = option(
        LOAD,
        "Tokens at the beginning that all prompts share.",
        0,
        spelled=("--random-prefix-len",),
        metavar="N",
    )
    request_rate: float = option(
        LOAD,
        "Requests per second. Default: inf, all at once.",
        math.inf,
        metavar="X",
        type=float,
    )
    burstiness: float = option(
        LOAD,
        "1 is a Poisson process, less is burstier, more is more even. Default: 1.",
        1.0,
        metavar="X",
        type=float,
    )
    max_concurrency: int | None = option(
        LOAD, "The most requests that are under way at once.", metavar="N", type=int
    )
    ignore_eos: bool = option(
        LOAD,
        "Ask for answers of the whole length, if the server can.",
        True,
        spelled=("--ignore-eos/--no-ignore-eos",),
    )
    metric_percentiles: str = option(
        OUTPUT, "Percentiles, with commas. Default: 50,95,99.", "50,95,99", metavar="N,..."
    )
    goodput: tuple[str, ...] = option(
        OUTPUT,
        "Count requests within a limit in ms, as ttft:500, tpot:50 or e2el:2000; may be given "
        "several times.",
        (),
        metavar="METRIC:MS",
        multiple=True,
    )
    seed: int = SEED
    output: Path | None = FOLDER
