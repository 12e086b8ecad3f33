"""The command `jitney plan` and its options. Those of the load have the names of `bench serve`.

Imports nothing heavy.

Tests: tests/unit/cli/test_flags.py and tests/e2e/test_plan.py.
"""

from dataclasses import dataclass
from pathlib import Path

from jitney.cli.flags import ASSIGNED, COMMAND, Verb, option
from jitney_lab.cli.bench_verbs import FOLDER, LOAD, SETTINGS

LIMITS = "Limits"
TTFT_MS, TPOT_MS = 2000, 200
SHARE = 0.95
PEAK = 1.5
BURSTINESS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Find the settings and the number of replicas that a load needs.

    It measures what ticks cost with the model on this machine, then simulates the load with the
    real scheduler on virtual time over settings and replicas, and recommends the smallest fleet
    that keeps enough requests within the limits. Measuring takes about a minute with a small model,
    and longer with a large one or with many slots. With --what-if it replays a load
    under other settings, side by side; with --day it simulates a day of a large fleet. Without
    options it plans for mixed lengths, at as much load as one replica sustains within the limits.

    The policy sjf is simulated as if max_tokens of every request were the length of its answer. So
    it is not recommended: the result says what it would gain.

    Examples:
        jitney plan
        jitney plan --request-rate 8 --goodput ttft:500 --goodput tpot:50 -o plan
        jitney plan --save-cost cost.json --input-len 512 --output-len 128
        jitney plan --cost cost.json --trace monday.jsonl --what-if max_num_seqs=32
        jitney plan --cost cost.json --day --request-rate 1000 --replicas 100
    """

    cost: Path | None = option(COMMAND)
    """Take the cost of ticks from this file, and measure nothing."""
    save_cost: Path | None = option(COMMAND)
    """Save the measured cost to this file, for --cost."""
    what_if: tuple[str, ...] = option(COMMAND, (), metavar="CHANGES")
    """Simulate the load under the present settings and under these, side by side: NAME=VALUE with
    commas between, also replicas=N; may be given several times."""
    day: bool = option(COMMAND, False)
    """Simulate a day on a fleet of --replicas, as a sample with its error."""
    assigned: tuple[str, ...] = ASSIGNED
    request_rate: float | None = option(LOAD)
    """Requests per second of the whole fleet; a trace without timestamps needs it. Default: that of
    the busiest minute of the trace, and with --what-if and --day its own; without a trace, as many
    as one replica sustains within the limits with the present settings."""
    trace: Path | None = option(LOAD)
    """Real traffic: a JSONL trace (timestamp in ms, input_length, output_length), or a file that
    jitney trace saved. With --what-if it is replayed as it was; else requests are drawn from it."""
    input_len: int | None = option(LOAD)
    """Tokens of a prompt. Default: mixed lengths from 16 to 96."""
    output_len: int | None = option(LOAD)
    """Tokens of an answer. Default: mixed lengths from 3 to 60."""
    range_ratio: float | None = option(LOAD, spelled=("--random-range-ratio",), metavar="SHARE")
    """Given lengths vary by up to this share. Default: 0."""
    burstiness: float | None = option(
        LOAD,
        help=f"1 is a Poisson process, less is burstier, more is more even. "
        f"Default: {BURSTINESS:g}.",
    )
    replicas: int | None = option(LOAD)
    """Replicas, up to 100,000 for --day and up to 1,000 for --what-if. Default: 1."""
    day_peak: float | None = option(
        LOAD,
        help="The busiest hour of --day has this many times the mean rate. "
        f"Default: {PEAK:g}, or the hours of the trace; a short trace is stretched over 24 hours.",
    )
    goodput: tuple[str, ...] = option(
        LIMITS,
        (),
        help="A limit in ms, as ttft:500, tpot:50 or e2el:2000; may be given several times. "
        f"Default: ttft:{TTFT_MS} and tpot:{TPOT_MS}.",
        metavar="METRIC:MS",
    )
    share: float | None = option(
        LIMITS,
        help=f"The share of requests that must be within the limits. Default: {SHARE:g}.",
        metavar="SHARE",
    )
    output: Path | None = FOLDER


PLAN_VERBS = (
    Verb(
        path=("plan",),
        module="jitney_lab.cli.plan",
        options=PlanOptions,
        settings=SETTINGS,
    ),
)
