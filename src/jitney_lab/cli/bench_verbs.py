"""The commands of `jitney bench` and their options, as in `verbs`.

Those of `serve` are in `serve_load_verb`. Imports nothing heavy.

Tests: tests/unit/cli/test_flags.py and tests/e2e/test_bench.py.
"""

from dataclasses import dataclass
from pathlib import Path

from jitney.cli.flags import ASSIGNED, COMMAND, Verb, option
from jitney_lab.cli.serve_load_verb import SERVE_LOAD_VERB

LOAD = "Load"
OUTPUT = "Output"

RUNS = option(COMMAND, "How often everything is measured, in turn.", 3)
FOLDER = option(
    OUTPUT,
    "A folder for the result as JSON and its plots (PNG, SVG).",
    spelled=("--output", "-o"),
    metavar="FOLDER",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategiesOptions:
    """Measure every way of batching on the same workloads and model.

    The workloads are answers of mixed length as a Poisson stream and in a closed loop, answers of
    equal length as a control, and twenty clients that want 50 to 200 tokens. The ways are one
    request at a time, static, dynamic, adaptive, windowed and continuous batching.
    """

    num_prompts: int = option(LOAD, "Requests of the mixed workloads.", 96)
    request_rate: float | None = option(
        LOAD,
        "Requests per second of the Poisson stream. Default: nine tenths of what is measured as "
        "possible here.",
    )
    runs: int = RUNS
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """Measure throughput against the number of sequences in a batch.

    It fits T(B) = C + B c to the times of ticks, with the error of the fit, and says where more
    sequences stop helping.
    """

    sizes: str = option(
        LOAD,
        "Batch sizes, with commas, up to 1024 if memory holds them, such as 1,16,64,256. "
        "Default: 1 to 64.",
        "1,2,4,8,16,32,64",
        metavar="N,...",
    )
    runs: int = RUNS
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class StallsOptions:
    """Measure what one long prompt does to eight streams, whole or in slices.

    The long prompt comes while the streams generate. It is computed as one large prefill, then
    beside them under the mix `bounded-stall`.
    """

    input_len: int = option(LOAD, "Tokens of the long prompt.", 4000)
    runs: int = RUNS
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadOptions:
    """Measure what a tick costs outside the forward pass, by part.

    The backend runs in this process, whatever the settings say.
    """

    sizes: str = option(
        LOAD, "Batch sizes, with commas. Default: 1,16,64.", "1,16,64", metavar="N,..."
    )
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Compare with other systems that are installed, in one interleaved run.

    Known are llama-server (from the wheel xllamacpp, and the one that LLAMA_SERVER names or
    that is on the PATH), vLLM in an environment of its own (the Python that VLLM_PYTHON names, or
    with vllm on the PATH), llama-cpp-python's server, OpenVINO GenAI and transformers. Servers are
    compared with jitney serve, libraries with jitney in process.
    """

    clients: str = option(
        LOAD, "Clients at once, with commas. Default: 1,4,16,64.", "1,4,16,64", metavar="N,..."
    )
    runs: int = RUNS
    assigned: tuple[str, ...] = ASSIGNED
    output: Path | None = FOLDER


SETTINGS = ("model", "backend", "seed")
"""The settings with a flag of their own; the others are given with --set."""

BENCH_VERBS = (
    Verb(
        path=("bench", "strategies"),
        module="jitney_lab.cli.bench",
        call="run_strategies",
        options=StrategiesOptions,
        examples=("jitney bench strategies", "jitney bench strategies --runs 1 -o results"),
        settings=SETTINGS,
    ),
    Verb(
        path=("bench", "scaling"),
        module="jitney_lab.cli.bench",
        call="run_scaling",
        options=ScalingOptions,
        examples=("jitney bench scaling --sizes 1,4,16,64 -o results",),
        settings=SETTINGS,
    ),
    Verb(
        path=("bench", "stalls"),
        module="jitney_lab.cli.bench",
        call="run_stalls",
        options=StallsOptions,
        examples=("jitney bench stalls --input-len 1000 --runs 1",),
        settings=SETTINGS,
    ),
    Verb(
        path=("bench", "overhead"),
        module="jitney_lab.cli.bench",
        call="run_overhead",
        options=OverheadOptions,
        examples=("jitney bench overhead",),
        settings=SETTINGS,
    ),
    Verb(
        path=("bench", "compare"),
        module="jitney_lab.cli.bench_compare",
        call="run_compare",
        options=CompareOptions,
        examples=("jitney bench compare --clients 1,16 -o results",),
        settings=SETTINGS,
    ),
    SERVE_LOAD_VERB,
)
"""All commands of the group, in the order of the help."""
