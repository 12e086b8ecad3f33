"""`jitney config show`: every setting in force, and where it came from. Main thread."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitney.cli.flags import Given, resolved
from jitney.cli.verbs import ShowOptions
from jitney.config import Known, Resolved, known_settings
from jitney.config.forms import Size, size_text

PIPED_WIDTH = 400
"""Lines are not broken where a program reads them."""


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
        known.name: {
            "value": _plain(getattr(found.settings, known.name)),
            "source": found.sources[known.name],
        }
        for known in known_settings()
    }
    return json.dumps(values, indent=2)


def _table(found: Resolved) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for known in known_settings():
        source = found.sources[known.name]
        cells = (known.name, value_text(known, found), source)
        style = "dim" if source == "default" else "green"
        table.add_row(*(Text(cell, style=style if cell is source else "") for cell in cells))
    return table


def value_text(known: Known, found: Resolved) -> str:
    """A value for people; one that is worked out later is said in words."""
    value = getattr(found.settings, known.name)
    if value is None:
        words = known.option.default_text
        return "none" if words is None else f"none: {words}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(known.option.form, Size) and isinstance(value, int):
        return size_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
