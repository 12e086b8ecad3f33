"""`jitney config show`: every setting in force, and where it came from. Main thread."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitney.cli.flags import Given, resolved
from jitney.cli.verbs import ShowOptions
from jitney.config import Known, Resolved, known_serve_settings, known_settings
from jitney.config.forms import Size, size_text
from jitney.config.policies import policy_text
from jitney.config.resolve import DEFAULT
from jitney.core.policy import SchedulingPolicy

PIPED_WIDTH = 400
"""Lines are not broken where a program reads them."""

SERVER_HEADING = "of the server"
NOT_SHOWN = "not shown"

Row = tuple[Known, object, str]
"""A setting, its value, and where it came from."""


def call(options: ShowOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    found = resolved(given)
    if options.json:
        sys.stdout.write(settings_json(found) + "\n")
        return 0
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    console.print(_table(found))
    return 0


def settings_json(found: Resolved) -> str:
    """An object with value and source for each setting."""
    values = {
        known.name: {"value": _plain(known, value), "source": source}
        for known, value, source in (*_of_engine(found), *_of_server(found))
    }
    return json.dumps(values, indent=2)


def _of_engine(found: Resolved) -> list[Row]:
    return [
        (known, getattr(found.settings, known.name), found.sources[known.name])
        for known in known_settings()
    ]


def _of_server(found: Resolved) -> list[Row]:
    serving = found.serving
    return [
        (known, getattr(serving.settings, known.name), serving.sources[known.name])
        for known in known_serve_settings()
    ]


def _table(found: Resolved) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    _add(table, _of_engine(found))
    table.add_row(Text(SERVER_HEADING, style="bold"))
    _add(table, _of_server(found))
    return table


def _add(table: Table, rows: list[Row]) -> None:
    for known, value, source in rows:
        style = "dim" if source == DEFAULT else "green"
        table.add_row(known.name, Text(value_text(known, value)), Text(source, style=style))


def value_text(known: Known, value: object) -> str:
    """A value for people; one that is worked out later is said in words."""
    if value is None or value == ():
        words = known.option.default_text
        if words is None:
            return "none"
        return words if words.startswith("none") else f"none: {words}"
    if known.option.is_secret:
        return NOT_SHOWN
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(known.option.form, Size) and isinstance(value, int):
        return size_text(value)
    if isinstance(value, SchedulingPolicy):
        return policy_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(known: Known, value: object) -> object:
    if known.option.is_secret and value:
        return NOT_SHOWN
    if isinstance(value, SchedulingPolicy):
        return policy_text(value)
    return str(value) if isinstance(value, Path) else value
