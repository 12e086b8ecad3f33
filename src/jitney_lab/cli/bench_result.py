"""What `jitney bench` and `jitney plan` share: checks of numbers, and how a result is given out.

Progress goes to standard error; tables and the last line, which is JSON, to standard output.

Tests: tests/e2e/test_bench.py and tests/unit/lab/bench/test_report.py.
"""

import contextlib
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from jitney.cli.failures import say
from jitney.config import Resolved, Settings
from jitney.errors import ConfigError
from jitney.loading.model_source import located
from jitney.version import install_line
from jitney_lab.bench.report import Result, document, setup_of, show, write_json, written_to
from jitney_lab.bench.steal import StealWatch, with_steal
from jitney_lab.bench.workload import Say

RUNS_MAX = 1000
PROMPTS_MAX = 1_000_000
SIZES_MAX = 1024
RATE_MIN = 1e-6
RATE_MAX = 1e6
LENGTH_MAX = 1_000_000
"""Tokens of a prompt or an answer that a flag may ask for."""

ARRIVALS_S_MAX = 3600.0
"""Longer ones are announced before they begin."""

Draw = Callable[[Path], list[Path]]
"""Draws a result into files of a folder."""

EXTRA = install_line("bench")


class Measure(Protocol):
    """Measures an engine with some settings. Raises SetupError."""

    def __call__(self, settings: Settings, *, seed: int, say: Say) -> Result:
        """The result."""
        ...


def measure_and_finish(
    measure: Measure, resolved: Resolved, folder: Path | None, unused: Collection[str]
) -> None:
    """Measure on this machine with these settings, and give the result out. Raises SetupError.

    `unused` are settings that the benchmark sets itself.
    """
    ignored = [name for name in resolved.given() if name in unused]
    reason = ", because this benchmark sets it itself"
    refuse_flags(resolved, ignored, f"{reason}; leave it out.")
    if ignored:
        say(f"Not used{reason}: {sources_of(resolved, ignored)}.")
    check_folder(folder)
    watch, seed = StealWatch(), seed_of(resolved)
    result = measure(located(resolved.settings), seed=seed, say=say)
    result = with_steal(result, watch.share())
    finish(result, seed, folder, setup_of(resolved, unused))


def refuse_flags(resolved: Resolved, ignored: Iterable[str], reason: str) -> None:
    """Refuse a flag for a setting that is ignored. Raises ConfigError.

    A file or the environment may be there for other commands.
    """
    for name in ignored:
        word, _, flag = resolved.sources[name].partition(" ")
        if word == "flag":
            raise ConfigError(f"{flag} would not be used{reason}")


def sources_of(resolved: Resolved, names: Iterable[str]) -> str:
    """Settings, and where they were given."""
    return ", ".join(f"{name} ({resolved.sources[name]})" for name in names)


def finish(
    result: Result,
    seed: int,
    folder: Path | None,
    setup: Mapping[str, object],
    plots: str = "jitney_lab.bench.plots",
) -> None:
    """Give out a result, with `setup`, what was measured; the module `plots` draws it."""
    content = document(result, seed, setup)
    give_out(result, content, folder, draw_later(plots, content))


def draw_later(module: str, content: dict[str, object]) -> Draw:
    """The function `draw` of a module, for a result. It takes a second to load, and only when a
    folder is given."""

    def draw(folder: Path) -> list[Path]:
        paths: list[Path] = importlib.import_module(module).draw(content, folder)
        return paths

    return draw


def give_out(
    result: Result, content: dict[str, object], folder: Path | None, draw: Draw | None
) -> None:
    """Show a result, write and draw it if a folder is given, and end with one JSON line.

    The line comes also when the result cannot be written or drawn: the work behind it was long.
    """
    show(result)
    line = json.dumps(content, allow_nan=False)
    try:
        if folder is not None:
            paths = [write_json(content, folder), *_drawn(draw, folder)]
            say(f"Written: {', '.join(map(str, paths))}.")
    finally:
        sys.stdout.write(line + "\n")


def _drawn(draw: Draw | None, folder: Path) -> list[Path]:
    """The files of the plots; none if they cannot be drawn."""
    if draw is None:
        return []
    if find_spec("matplotlib") is None:
        say(f"No plot was drawn: matplotlib is not installed; {EXTRA}.")
        return []
    try:
        return draw(folder)
    except Exception as error:  # matplotlib may raise anything; the figures are there without it
        say(f"No plot was drawn: {type(error).__name__}: {str(error).rstrip('.')}.")
        return []


def check_folder(folder: Path | None) -> None:
    """See before a long measurement that its result can be written. Raises a SetupError.

    A folder that is not there is made as a trial only: there may be no result to put into it.
    """
    if folder is None:
        return
    with written_to(folder):
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"trial")
    with contextlib.suppress(OSError):  # somebody else has use for it already
        for each in missing:
            each.rmdir()


def announce_arrivals(seconds: float) -> None:
    """Say before a measurement that it will take hours."""
    if seconds > ARRIVALS_S_MAX:
        say(
            f"The last request arrives after {seconds / 3600:,.1f} hours; if that is too long, "
            "send fewer requests or faster."
        )


def seed_of(resolved: Resolved) -> int:
    """The seed of lengths, prompts and arrivals: the setting `seed`, or 0."""
    return resolved.settings.seed or 0


def check_number(flag: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside of its range. Raises ConfigError."""
    # Written so that NaN is refused too.
    if not low <= value <= high:
        raise ConfigError(f"{flag} is {value:g}; expected a number from {low:g} to {high:g}.")


def read_counts(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, each once, smallest first."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1 or found[-1] > SIZES_MAX:
        raise ConfigError(
            f"{flag} {text} is not a list of numbers from 1 to {SIZES_MAX}; for example 1,4,16."
        )
    return tuple(found)
