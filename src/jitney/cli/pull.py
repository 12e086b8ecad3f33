"""`jitney pull`: fetch a model by name, or the embedded one, with a progress bar. Main thread.

Tests: tests/e2e/test_hub.py.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn

from jitney.backends.kinds import all_kinds
from jitney.cli.adding import add_if_missing
from jitney.cli.progress_bar import progress_bar
from jitney.cli.verbs import PullOptions
from jitney.config import Resolved, Settings
from jitney.errors import ConfigError, SetupError
from jitney.loading import ready_model
from jitney.loading.model_source import check_known, located, takes_model
from jitney.models import embedded
from jitney.models.hub_reference import hub_module, parse_reference
from jitney.models.parts import size_of

MIB = 2**20


def call(options: PullOptions, resolved: Resolved) -> None:
    """Run the command."""
    settings = resolved.settings
    show_log(every_tick=False)
    if options.named is not None:
        _pull_named(options.named, settings)
        return
    settings = replace(settings, model=None)
    add_if_missing(settings)
    with _progress() as report:
        model = ready_model(settings, report)
    files = model.iterdir() if model.is_dir() else [model]
    size = sum(file.stat().st_size for file in files) / MIB
    sys.stdout.write(f"{embedded.NAME} is ready: {model} ({size:.0f} MiB)\n")


def _pull_named(name: str, settings: Settings) -> None:
    reference = parse_reference(name)
    if reference is None:
        raise ConfigError(
            f"{name} is not the name of a model on the hub; such a name is owner/name, "
            "owner/name:quant or owner/name/file.gguf."
        )
    with _progress() as report:
        check = partial(check_known, settings)
        model = hub_module("hub").fetch(reference, settings.cache_dir, report, check)
    sys.stdout.write(f"{reference} is here: {model} ({size_of(model) / MIB:.1f} MiB)\n")
    for line in _needs_of(replace(settings, model=model)):
        sys.stdout.write(f"{line}\n")


def _needs_of(settings: Settings) -> Iterator[str]:
    """A line for each backend that runs the model at this path: the memory that it takes."""
    model = settings.model
    assert model is not None, "It was fetched"
    for kind in all_kinds():
        try:
            if not kind.is_automatic() or kind.refusal(model, settings.max_model_len) is not None:
                continue
            needs = kind.needs(model, settings)
        except SetupError as error:
            yield f"{kind.title}: {error}"
        else:
            if needs is not None:
                yield f"{kind.title}: {needs.in_words(settings)}"


def fetch_model(
    settings: Settings, prepare: Callable[[Settings], None] = lambda settings: None
) -> None:
    """Fetch the model before it is loaded; quick and quiet if it is already here.

    The embedded one is also converted for its backend. `prepare` is called before that, with the
    settings that have the path of the model.
    """
    if not takes_model(settings):
        return
    with _progress() as report:
        here = located(settings, report)
    prepare(here)
    if settings.model is None:
        with _progress() as report:
            ready_model(settings, report)


def show_log(*, every_tick: bool) -> None:
    """Send the engine's log to standard error, in the form of our sentences."""
    level = logging.INFO if every_tick else logging.WARNING
    logging.basicConfig(level=level, format="jitney: %(message)s", stream=sys.stderr)


@contextmanager
def _progress() -> Iterator[embedded.Progress]:
    """A progress bar on a terminal, which appears with the first progress."""
    figures = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    bar = progress_bar(Console(stderr=True), *figures)
    task = bar.add_task("fetching", total=None)

    def report(done: int, total: int) -> None:
        bar.start()
        description = "fetching" if done < total else "making it ready"
        bar.update(task, completed=done, total=total, description=description)

    try:
        yield report
    finally:
        bar.stop()
