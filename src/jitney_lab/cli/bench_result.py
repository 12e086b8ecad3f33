"""What `jitney bench` and `jitney plan` share: a measurement, and how a result is given out.

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
from typing import Any  # Any: JSON values

from jitney.cli.failures import say
from jitney.config import Resolved
from jitney.errors import ConfigError
from jitney.loading.model_source import located
from jitney.version import install_line
from jitney_lab.bench.report import Result, document, setup_of, show, write_json, written_to
from jitney_lab.bench.steal import StealWatch, with_steal

CACHE = "cache_dir"
"""A folder changes no figure."""

Measure = Callable[..., Result]
"""Measures an engine with some `settings`, a `seed`, and `say` for progress. Raises SetupError."""

EXTRA = install_line("bench")


def measure_and_finish(
    measure: Measure, resolved: Resolved, folder: Path | None, unused: Collection[str]
) -> None:
    """Measure on this machine with these settings, and give the result out. Raises SetupError.

    `unused` are settings that the benchmark sets itself.
    """
    ignored = [name for name in resolved.given() if name in unused]
    reason = "because this benchmark sets it itself"
    leave_unused(resolved, ignored, f", {reason}; leave it out", reason)
    check_folder(folder)
    watch, seed = StealWatch(), seed_of(resolved)
    result = measure(located(resolved.settings), seed=seed, say=say)
    result = with_steal(result, watch.share())
    finish(result, seed, folder, setup_of(resolved, unused))


def leave_unused(resolved: Resolved, names: Iterable[str], refusal: str, reason: str) -> None:
    """Refuse flags for settings that are not used, and name those that come from elsewhere.

    A file or the environment may be there for other commands. Raises ConfigError.
    """
    sources = {name: resolved.sources[name] for name in names}
    for source in sources.values():
        word, _, flag = source.partition(" ")
        if word == "flag":
            raise ConfigError(f"{flag} would not be used{refusal}.")
    told = [f"{name} ({source})" for name, source in sources.items() if name != CACHE]
    if told:
        say(f"Not used, {reason}: {', '.join(told)}.")


def finish(
    result: Result,
    seed: int,
    folder: Path | None,
    setup: Mapping[str, object],
    plots: str = "jitney_lab.bench.plots",
) -> None:
    """Give out a result, with `setup`, what was measured; the module `plots` draws it."""
    give_out(result, document(result, seed, setup), folder, plots)


def give_out(
    result: Result, content: dict[str, Any], folder: Path | None = None, plots: str | None = None
) -> None:
    """Show a result, write and draw it if a folder is given, and end with one JSON line.

    The line comes also when the result cannot be written or drawn: the work behind it was long.
    """
    show(result)
    line = json.dumps(content, allow_nan=False)
    try:
        if folder is not None:
            paths = [write_json(content, folder), *_drawn(plots, content, folder)]
            say(f"Written: {', '.join(map(str, paths))}.")
    finally:
        sys.stdout.write(line + "\n")


def _drawn(plots: str | None, content: dict[str, Any], folder: Path) -> list[Path]:
    """The files of the plots; none if they cannot be drawn."""
    if plots is None:
        return []
    if find_spec("matplotlib") is None:
        say(f"No plot was drawn: matplotlib is not installed; {EXTRA}.")
        return []
    try:
        # It takes a second to load.
        paths: list[Path] = importlib.import_module(plots).draw(content, folder)
        return paths
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


def seed_of(resolved: Resolved) -> int:
    """The seed of lengths, prompts and arrivals: the setting `seed`, or 0."""
    return resolved.settings.seed or 0
