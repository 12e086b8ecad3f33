"""The commands of `jitney bench` and their options, as in `verbs`. Imports nothing heavy.

Tests: tests/unit/cli/test_flags.py and tests/e2e/test_bench.py.
"""

from dataclasses import dataclass
from pathlib import Path

from jitney.cli.flags import API_KEY, ASSIGNED, COMMAND, SERVER_URL, Verb, option

LOAD = "Load"
OUTPUT = "Output"
NUM_PROMPTS, INPUT_LEN, OUTPUT_LEN = 100, 128, 64
MIXED_PROMPTS, RUNS_DEFAULT = 96, 3

RUNS = option(COMMAND, RUNS_DEFAULT, help="How often everything is measured, in turn.")
FOLDER = option(
    OUTPUT,
    help="A folder for the result as JSON and its plots (PNG, SVG).",
    spelled=("--output", "-o"),
    metavar="FOLDER",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategiesOptions:
    """Measure every way of batching on the same workloads and model.

    The workloads are answers of mixed length as a Poisson stream and in a closed loop, answers of
    equal length as a control, and twenty clients that want 50 to 200 tokens. The ways are one
    request at a time, static, dynamic, adaptive, windowed and continuous batching.

    Examples:
        jitney bench strategies --quick
        jitney bench strategies --runs 1 -o results
    """

    quick: bool = option(LOAD, False)
    """Under a minute: one workload on which groups are certain to be slower, one run, and only one
    request at a time, static and continuous batching."""
    num_prompts: int | None = option(
        LOAD, help=f"Requests of the mixed workloads. Default: {MIXED_PROMPTS}."
    )
    request_rate: float | None = option(LOAD)
    """Requests per second of the Poisson stream. Default: nine tenths of what is measured as
    possible here."""
    runs: int | None = option(COMMAND)
    """How often everything is measured, in turn. Default: 3, or 1 if it is quick."""
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """Measure throughput against the number of sequences in a batch.

    It fits T(B) = C + B c to the times of ticks, with the error of the fit, and says where more
    sequences stop helping.

    Examples:
        jitney bench scaling --sizes 1,4,16,64 -o results
    """

    sizes: str = option(LOAD, "1,2,4,8,16,32,64", metavar="N,...")
    """Batch sizes, with commas, up to 1024 if memory holds them, such as 1,16,64,256. Default: 1 to
    64."""
    runs: int = RUNS
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class StallsOptions:
    """Measure what one long prompt does to eight streams, whole or in slices.

    The long prompt comes while the streams generate. It is computed as one large prefill, then
    beside them under the mix `bounded-stall`.

    Examples:
        jitney bench stalls --input-len 1000 --runs 1
    """

    input_len: int = option(LOAD, 4000)
    """Tokens of the long prompt."""
    runs: int = RUNS
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadOptions:
    """Measure what a tick costs outside the forward pass, and a call over HTTP, by part.

    The backend runs in this process, whatever the settings say. For the cost of calls a server runs
    here too, and a second process sends chats to it, as many at once as the largest size.

    Examples:
        jitney bench overhead
    """

    sizes: str = option(LOAD, "1,16,64", metavar="N,...")
    """Batch sizes, with commas. Default: 1,16,64."""
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLoadOptions:
    """Put load on a running server that speaks OpenAI's HTTP interface.

    Results have the names of `vllm bench serve`: times to the first token (ttft), per token after
    it (tpot), between chunks of the stream (itl), of one token or several, and to the end (e2el).
    For other datasets and kinds of load, `vllm bench serve` and `guidellm` work with any such
    server.

    Examples:
        jitney bench serve --num-prompts 200 --request-rate 4
        jitney bench serve --dataset-path day.jsonl --goodput ttft:500 --goodput tpot:50
    """

    base_url: str = option(
        COMMAND, SERVER_URL, help=f"Where the server is. Default: {SERVER_URL}.", metavar="URL"
    )
    endpoint: str = option(COMMAND, "/v1/completions", metavar="PATH")
    """The path of the requests; with `chat` in it they are chats. Default: /v1/completions."""
    model_name: str | None = option(COMMAND, spelled=("--model",), metavar="NAME")
    """The name of the model. Default: the first one that the server lists."""
    api_key: str | None = API_KEY
    seed: int = option(COMMAND, 0)
    """Prompts and arrivals come from it."""
    num_prompts: int | None = option(LOAD, help=f"How many requests. Default: {NUM_PROMPTS}.")
    input_len: int | None = option(LOAD, help=f"Tokens of a prompt, about. Default: {INPUT_LEN}.")
    output_len: int | None = option(LOAD, help=f"Tokens of an answer. Default: {OUTPUT_LEN}.")
    dataset_path: Path | None = option(LOAD)
    """A JSONL trace in place of these: timestamp (ms), input_length and output_length in each line.
    Without timestamps, the requests arrive at --request-rate."""
    request_rate: float | None = option(LOAD)
    """Requests per second, as a Poisson process. Default: inf, all at once; with a trace, its
    timestamps."""
    max_concurrency: int | None = option(LOAD, metavar="N")
    """The most requests that are under way at once."""
    ignore_eos: bool = option(LOAD, True, spelled=("--ignore-eos/--no-ignore-eos",))
    """Ask for answers of the whole length, if the server can. Default: yes."""
    goodput: tuple[str, ...] = option(OUTPUT, (), metavar="METRIC:MS")
    """Count requests within all these limits in ms, as ttft:500, tpot:50, e2el:2000, or itl:200 for
    each gap. May be given several times."""
    output: Path | None = FOLDER


SETTINGS = ("model", "backend", "seed")
"""The settings with a flag of their own; the others are given with --set."""


def _engine_verb(name: str, options: type) -> Verb:
    """A command that measures an engine of this process."""
    return Verb(
        path=("bench", name),
        module="jitney_lab.cli.bench",
        call=f"run_{name}",
        options=options,
        settings=SETTINGS,
    )


BENCH_VERBS = (
    _engine_verb("strategies", StrategiesOptions),
    _engine_verb("scaling", ScalingOptions),
    _engine_verb("stalls", StallsOptions),
    _engine_verb("overhead", OverheadOptions),
    Verb(
        path=("bench", "serve"),
        module="jitney_lab.cli.bench_serve",
        call="run_serve",
        options=ServeLoadOptions,
        settings=(),
    ),
)
"""All commands of the group, in the order of the help."""
