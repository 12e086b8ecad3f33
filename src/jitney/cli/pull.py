"""`jitney pull`: fetch the embedded model and make it ready, with a progress bar. Main thread."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from jitney.cli.flags import Given, resolved
from jitney.cli.verbs import PullOptions
from jitney.config import Settings
from jitney.loading import ready_model
from jitney.models import embedded

MIB = 2**20


def call(options: PullOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    del options
    show_log(every_tick=False)
    model = fetch_embedded(replace(resolved(given).settings, model=None))
    files = model.iterdir() if model.is_dir() else [model]
    size = sum(file.stat().st_size for file in files) / MIB
    sys.stdout.write(f"{embedded.NAME} is ready: {model} ({size:.0f} MiB)\n")
    return 0


def fetch_embedded(settings: Settings) -> Path:
    """The embedded model, ready for its backend; quick and quiet when it is there already."""
    with _progress() as told:
        return ready_model(settings, told)


def show_log(*, every_tick: bool) -> None:
    """Send what the engine logs to standard error, in the form of our own sentences."""
    level = logging.INFO if every_tick else logging.WARNING
    logging.basicConfig(level=level, format="jitney: %(message)s", stream=sys.stderr)


@contextmanager
def _progress() -> Iterator[embedded.Progress]:
    """A bar that appears with the first news, when standard error is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("fetching", total=None)

    def told(done: int, total: int) -> None:
        if not console.is_terminal:
            return
        bar.start()
        description = "fetching" if done < total else "making it ready"
        bar.update(task, completed=done, total=total, description=description)

    try:
        yield told
    finally:
        # A bar that never started would end with an empty line.
        if bar.live.is_started:
            bar.stop()
