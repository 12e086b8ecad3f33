"""What `jitney plan` shows, writes and draws, and what it says while it works. Main thread.

Tests: tests/e2e/test_plan.py and tests/unit/lab/plan/test_output.py.
"""

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: the module of pictures is loaded only to draw

from rich.console import Console

from jitney.backends.machine.cores import usable_cores
from jitney.cli.failures import say
from jitney.cli.progress_bar import progress_bar
from jitney.engine.clock import SystemClock
from jitney.errors import ConfigError
from jitney.models.files import disk_errors
from jitney_lab.bench.report import Result, document
from jitney_lab.cli.bench_result import check_folder, give_out
from jitney_lab.cli.plan_verb import PlanOptions
from jitney_lab.plan.pool import Pool, Progress

TELL_S = 10.0
"""How often progress is said where there is no terminal for a bar."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A result, and what paints its picture with `jitney_lab.plan.pictures`, if there is one."""

    result: Result
    policies: tuple[object, ...] = ()
    """Those that were simulated for the figures of its table."""
    paint: Callable[[Any], Any] | None = None


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


def finish(
    shown: Shown, seed: int, folder: Path | None, setup: Mapping[str, object] | None = None
) -> None:
    """Give out a result, as `bench_result.give_out` does."""
    paint = shown.paint

    def draw(into: Path) -> list[Path]:
        assert paint is not None, "Called only with a picture"
        # They take a second to load, and only this needs them.
        figure = paint(importlib.import_module("jitney_lab.plan.pictures"))
        drawing = importlib.import_module("jitney_lab.bench.drawing")
        paths: list[Path] = drawing.save_figure(figure, shown.result.name, into)
        return paths

    content = document(shown.result, seed, setup)
    give_out(shown.result, content, folder, None if paint is None else draw)


@contextmanager
def simulators() -> Iterator[Pool]:
    """Processes on all cores. A bar on a terminal, and now and then a line elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with Pool(usable_cores(), tell_now_and_then()) as pool:
            yield pool
        return
    bar = progress_bar(console)
    line = bar.add_task("simulating", total=None)

    def progress(done: int, count: int) -> None:
        bar.update(line, completed=done, total=count)

    with bar, Pool(usable_cores(), progress) as pool:
        yield pool


def tell_now_and_then(now: Callable[[], float] | None = None) -> Progress:
    """Says how many simulations are done, at most every few seconds."""
    read = now or SystemClock().now
    told_at = read()

    def progress(done: int, count: int) -> None:
        nonlocal told_at
        if read() >= told_at + TELL_S:
            told_at = read()
            say(f"simulated {done:,} of {count:,} cases")

    return progress


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """On a terminal, one line that says what is measured now."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("loading the model") as line:
        yield lambda text: line.update(text)
