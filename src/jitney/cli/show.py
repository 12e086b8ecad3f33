"""`jitney config show`: shows every setting in force and its source. Main thread.

Tests: tests/e2e/test_cli.py.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitney.cli.verbs import ShowOptions
from jitney.config import Resolved, Setting, known_serve_settings, known_settings
from jitney.config.policies import policy_text
from jitney.config.resolve import DEFAULT
from jitney.core.scheduler_settings import SchedulingPolicy

PIPED_WIDTH = 400
"""Wide enough that lines are not broken for a program."""

SERVER_HEADING = "of the server"
NOT_SHOWN = "not shown"


def call(options: ShowOptions, resolved: Resolved) -> None:
    """Run the command."""
    if options.json:
        sys.stdout.write(settings_json(resolved) + "\n")
        return
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    console.print(_table(resolved))


def settings_json(resolved: Resolved) -> str:
    """A JSON object with value and source for each setting."""
    values = {
        setting.name: {"value": _plain(setting, value), "source": resolved.sources[setting.name]}
        for setting, value in _values(resolved)
    }
    return json.dumps(values, indent=2)


def _values(resolved: Resolved) -> Iterator[tuple[Setting, object]]:
    """Every setting with its value; the server's come last."""
    for each in known_settings():
        yield each, getattr(resolved.settings, each.name)
    for each in known_serve_settings():
        yield each, getattr(resolved.serving, each.name)


def _table(resolved: Resolved) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    first_served = known_serve_settings()[0]
    for setting, value in _values(resolved):
        if setting == first_served:
            table.add_row(Text(SERVER_HEADING, style="bold"))
        source = resolved.sources[setting.name]
        style = "dim" if source == DEFAULT else "green"
        table.add_row(setting.name, Text(value_text(setting, value)), Text(source, style=style))
    return table


def value_text(setting: Setting, value: object) -> str:
    """A value for people; in words, if it is computed later."""
    if value is None or value == ():
        words = setting.default_text
        if words is None:
            return "none"
        return words if words.startswith("none") else f"none: {words}"
    if setting.is_secret:
        return NOT_SHOWN
    return setting.form.show(value)


def _plain(setting: Setting, value: object) -> object:
    if setting.is_secret and value:
        return NOT_SHOWN
    if isinstance(value, SchedulingPolicy):
        return policy_text(value)
    return str(value) if isinstance(value, Path) else value
