"""`jitney bench compare`: other systems beside jitney. Main thread.

Tests: tests/e2e/test_bench.py.
"""

from jitney.bench.compare import Comparison, files_of
from jitney.bench.report import Result
from jitney.cli.bench_result import (
    RUNS_MAX,
    check_number,
    measure_and_finish,
    read_counts,
    seed_of,
)
from jitney.cli.bench_verbs import CompareOptions
from jitney.cli.failures import say
from jitney.config import Resolved


def run_compare(options: CompareOptions, resolved: Resolved) -> None:
    """Run `jitney bench compare`."""
    check_number("--runs", options.runs, 1, RUNS_MAX)
    clients = read_counts("--clients", options.clients)

    def measure() -> Result:
        files, seed = files_of(resolved.settings, say), seed_of(resolved)
        return Comparison(resolved, files, runs=options.runs, seed=seed, say=say).run(clients)

    measure_and_finish(measure, resolved, options.output)
