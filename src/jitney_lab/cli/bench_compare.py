"""`jitney bench compare`: other systems beside jitney. Main thread.

Tests: tests/e2e/test_bench.py.
"""

from jitney.cli.failures import say
from jitney.config import Resolved
from jitney.errors import ConfigError
from jitney.loading import select_backend
from jitney.loading.model_source import located
from jitney_lab.bench.compare import SETS, Comparison, files_of, sizes_at
from jitney_lab.bench.in_process import for_bench
from jitney_lab.bench.report import Result
from jitney_lab.cli.bench_result import (
    RUNS_MAX,
    check_number,
    measure_and_finish,
    read_counts,
    seed_of,
)
from jitney_lab.cli.bench_verbs import CompareOptions

FAKE = "fake"


def run_compare(options: CompareOptions, resolved: Resolved) -> None:
    """Run `jitney bench compare`."""
    check_number("--runs", options.runs, 1, RUNS_MAX)
    clients = read_counts("--clients", options.clients)

    if resolved.settings.backend == FAKE:
        raise ConfigError(
            f"--backend {FAKE} computes nothing that others could be compared with; leave it out."
        )

    def measure() -> Result:
        # A wrong file is told by us: the peers say it in many words.
        select_backend(for_bench(located(resolved.settings), **sizes_at(max(clients))))
        files, seed = files_of(resolved.settings, say), seed_of(resolved)
        return Comparison(resolved, files, runs=options.runs, seed=seed, say=say).run(clients)

    measure_and_finish(measure, resolved, options.output, SETS)
