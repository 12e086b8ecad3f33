"""`jitney backends`: shows what is installed, what works here, and which backend a model would get.

Main thread. Each backend is tried once, in a child process. Without `--measure` and `--add`,
nothing is converted, nothing but the head of a model on the hub is fetched, and only the results of
trials are written.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitney.backends.kinds import all_kinds, kind_of
from jitney.cli.adding import add_backend
from jitney.cli.pull import fetch_model, show_log
from jitney.cli.verbs import BackendsOptions
from jitney.config import Resolved, Settings
from jitney.errors import ConfigError, MissingDependency, ModelError
from jitney.loading import select_backend, select_backend_if_known, state_with_needs
from jitney.loading.model_source import located_head, located_if_fetched, takes_model
from jitney.loading.selection import FEW_SEQUENCES, BackendState
from jitney.models import embedded
from jitney.text.printable import printable

LABELS_WIDTH = 11

NOT_MEASURED = (
    f"with up to {FEW_SEQUENCES} sequences the fastest of several is chosen, and their speed was "
    "not measured for this model yet: the first start measures it, and so does this command with "
    "--measure"
)
NOT_FETCHED = "the model was not fetched yet: jitney pull fetches it, and so does --measure"
DESCRIBED = ("name", "extra", "models", "runs_on", "memory", "block_tokens", "texts")
"""The fields of a kind that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All that the command shows. `chosen` is None if there is no choice, or not yet."""

    model: str
    states: tuple[BackendState, ...]
    chosen: str | None
    reason: str
    numbers: str | None = None
    """The number type it would compute with, if there is a choice."""
    settings: Settings


def call(options: BackendsOptions, resolved: Resolved) -> None:
    """Run the command."""
    settings = resolved.settings
    show_log(every_tick=False)
    if options.add is not None:
        add_backend(options.add, settings)
    found = overview(settings, measures=options.measure)
    if options.json:
        sys.stdout.write(overview_json(found) + "\n")
    elif sys.stdout.isatty():
        Console(highlight=False).print(_table(found))
    else:
        # For a program, lines are not broken.
        for label, text, _ in _rows(found):
            sys.stdout.write(f"{label:<{LABELS_WIDTH}}{text}".rstrip() + "\n")


def overview(settings: Settings, *, measures: bool = False) -> Overview:
    """The backends, and the choice for these settings. Raises ModelError for a bad model."""
    here = located_if_fetched(settings)
    if here is None and measures:
        fetch_model(settings)
        here = located_if_fetched(settings)
    if here is not None:
        return _overview(settings, here, is_here=True, measures=measures)
    with located_head(settings) as head:
        try:
            return _overview(settings, head, is_here=False, measures=False)
        except ModelError as error:
            named = str(error).replace(f"{head and head.model}", f"{settings.model}")
            raise ModelError(named) from None


def _overview(
    settings: Settings, here: Settings | None, *, is_here: bool, measures: bool
) -> Overview:
    """The same with the settings that have the path of the model, or of its head if it has one."""
    known = here or replace(settings, model=None)
    states = tuple(state_with_needs(kind, known) for kind in all_kinds())
    selection, reason = None, NOT_FETCHED
    try:
        if here is not None:
            selection = select_backend_if_known(here, states)
            if selection is None and measures:
                fetch_model(here)
                selection = select_backend(here)
            reason = NOT_MEASURED if selection is None else selection.reason
    except (ConfigError, MissingDependency) as error:
        reason = str(error).rstrip(".")
    chosen = None if selection is None else selection.name
    return Overview(
        model=_model_text(settings, is_here=is_here),
        states=states,
        chosen=chosen,
        reason=reason + _obstacle(chosen, states),
        numbers=None if here is None or chosen is None else kind_of(chosen).numbers(here),
        settings=settings,
    )


def works(each: BackendState) -> bool:
    """Whether it could run a model here."""
    return each.library is not None and each.failure is None


def state(each: BackendState) -> str:
    """Its version and whether it works here, or how to install it."""
    if each.kind.extra is None:
        return "built in"
    if each.library is None:
        return f"not installed: {each.kind.advice}"
    version = each.library.version or "installed, of an unknown version"
    verdict = "yes, it was tried" if each.failure is None else f"no: {each.failure}"
    return f"{version}; works here: {verdict}"


def overview_json(found: Overview) -> str:
    """An object with the backends, the choice and its reason."""
    backends = [
        {
            **{name: getattr(each.kind, name) for name in DESCRIBED},
            "installed": each.library is not None,
            "works": works(each),
            "failure": each.failure,
            "version": None if each.library is None else each.library.version,
            "refusal": each.refusal,
            "no_room": each.no_room,
            "needs": each.needs
            and asdict(each.needs) | {"length": each.needs.length(found.settings)},
        }
        for each in found.states
    ]
    choice = {name: getattr(found, name) for name in ("model", "chosen", "reason", "numbers")}
    return json.dumps({"backends": backends, **choice}, indent=2)


def _model_text(settings: Settings, *, is_here: bool) -> str:
    if not takes_model(settings):
        return f"none, with the {settings.backend} backend"
    if settings.model is not None:
        return f"{settings.model}" + ("" if is_here else ", not fetched yet")
    is_there = embedded.is_there(settings.cache_dir)
    return f"{embedded.NAME}, the embedded one" + ("" if is_there else ", not fetched yet")


def _obstacle(chosen: str | None, states: tuple[BackendState, ...]) -> str:
    """Why the backend that the settings name cannot run, if so."""
    each = next((each for each in states if each.kind.name == chosen), None)
    if each is None:
        return ""
    if each.library is None:
        return f"; but it is {state(each)}"
    if each.no_room is not None:
        return f"; but this machine has no room for the model now: {each.no_room}"
    return f"; but it cannot run the model: {each.refusal}" if each.refusal else ""


def _rows(found: Overview) -> list[tuple[str, str, str]]:
    """Lines of the output: label, text and style. The label of a heading has no indent."""
    rows = []
    for each in found.states:
        kind = each.kind
        rows += [
            (kind.name, state(each), "green" if works(each) else "yellow"),
            ("  models", kind.models, ""),
            ("  runs on", kind.runs_on, ""),
            ("  memory", kind.memory, ""),
            ("  texts", kind.texts, ""),
        ]
        if each.refusal is not None:
            rows.append(("  refuses", f"this model: {printable(each.refusal)}", ""))
        if each.no_room is not None:
            rows.append(("  lacks", f"room for this model: {each.no_room}", ""))
        if each.needs is not None:
            words = each.needs.in_words(found.settings)
            rows.append(("  runs", f"this model: {words}", ""))
        rows.append(("", "", ""))
    is_known = found.reason not in (NOT_MEASURED, NOT_FETCHED)
    rows += [
        ("model", printable(found.model), ""),
        ("chosen", found.chosen or ("none" if is_known else "not known yet"), "bold"),
        ("  because", printable(found.reason), ""),
    ]
    return rows if found.numbers is None else [*rows, ("  with", found.numbers, "")]


def _table(found: Overview) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=0)
    table.add_column(width=LABELS_WIDTH)
    table.add_column(overflow="fold")
    for label, text, style in _rows(found):
        label_style = "dim" if label.startswith(" ") else "bold"
        table.add_row(Text(label, style=label_style), Text(text, style=style))
    return table
