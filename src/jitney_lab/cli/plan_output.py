"""What `jitney plan` says while it works, and whether it can write its results. Main thread.

Tests: tests/e2e/test_plan.py and tests/unit/lab/plan/test_output.py.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from jitney.backends.machine.cores import usable_cores
from jitney.cli.failures import say
from jitney.cli.progress_bar import progress_bar
from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError
from jitney.models.files import disk_errors
from jitney_lab.cli.bench_result import check_folder
from jitney_lab.cli.plan_verb import PlanOptions
from jitney_lab.plan.pool import Pool

PROGRESS_S = 10.0
"""How often progress is said where there is no terminal for a bar."""


def check_output(options: PlanOptions) -> None:
    """Check before long work that its results can be written. Raises SetupError."""
    check_folder(options.output)
    if options.save_cost is not None:
        if options.save_cost.is_dir():
            raise ConfigError(f"--save-cost {options.save_cost} is a folder; give a file.")
        with (
            disk_errors(f"The cost cannot be written to {options.save_cost}"),
            tempfile.TemporaryFile(dir=options.save_cost.parent),
        ):
            pass


@contextmanager
def simulators() -> Iterator[Pool]:
    """Processes on all cores. A bar on a terminal, and now and then a line elsewhere."""
    console, clock = Console(stderr=True), SystemClock()
    bar = progress_bar(console)
    task = bar.add_task("simulating", total=None)
    said_at = clock.now()

    def progress(done: int, count: int) -> None:
        nonlocal said_at
        bar.update(task, completed=done, total=count)
        if not console.is_terminal and clock.now() >= said_at + PROGRESS_S:
            said_at = clock.now()
            say(f"simulated {done:,} of {count:,} cases")

    with bar, Pool(usable_cores(), progress) as pool:
        yield pool
