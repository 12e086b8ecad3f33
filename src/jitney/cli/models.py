"""`jitney models`: what is on this machine, with sizes and last use. Main thread.

Fetches nothing and removes nothing. Where the hub's library is not installed, its cache is not
looked at.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitney.cli.flags import Given, resolved
from jitney.cli.terminal import printable
from jitney.cli.verbs_models import ModelsOptions
from jitney.errors import MissingDependency
from jitney.loading import hub_module
from jitney.models import inventory, marks
from jitney.models.inventory import Stored

HUB = "hub"
NOTHING = "There is no model here yet; jitney pull fetches one.\n"


def call(options: ModelsOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    found = everything(resolved(given).settings.cache_dir)
    if options.json:
        sys.stdout.write(models_json(found) + "\n")
    elif not found:
        sys.stdout.write(NOTHING)
    elif sys.stdout.isatty():
        Console(highlight=False).print(_table(found))
    else:
        # Lines are not broken where a program reads them.
        for each in found:
            sys.stdout.write("\t".join(_row(each)) + "\n")
    return 0


def everything(cache: Path) -> list[Stored]:
    """Every model on this machine: the embedded one, those of the hub, conversions."""
    own = inventory.stored(cache)
    try:
        held = hub_module("hub_cache").held()
    except MissingDependency:
        held = []
    named = [
        Stored(
            name=each.name,
            kind=HUB,
            path=each.path,
            size=each.size,
            used_at=marks.last_use(cache, each.path, [each.path]),
        )
        for each in held
    ]
    return [
        *(each for each in own if each.kind == inventory.EMBEDDED),
        *named,
        *(each for each in own if each.kind == inventory.CONVERTED),
    ]


def models_json(found: list[Stored]) -> str:
    """A list of objects."""
    return json.dumps(
        [
            {
                "name": each.name,
                "kind": each.kind,
                "bytes": each.size,
                "last_used": None if each.used_at is None else each.used_at.isoformat(),
                "path": str(each.path),
                "source": each.source,
                "state": each.state,
            }
            for each in found
        ],
        indent=2,
    )


def bytes_text(count: int) -> str:
    """Bytes in the unit that people would take."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def _source_text(source: str) -> str:
    """What a conversion was made from; of the hub's cache, the repository."""
    found = [part for part in Path(source).parts if part.startswith("models--")]
    return found[-1].removeprefix("models--").replace("--", "/", 1) if found else source


def _row(each: Stored) -> tuple[str, ...]:
    state = each.state
    if each.source is not None:
        state = f"{state}, from {_source_text(each.source)}"
    return (
        printable(each.name),
        each.kind,
        bytes_text(each.size),
        _time_text(each.used_at),
        printable(state),
    )


def _time_text(at: datetime | None) -> str:
    return "not known" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M")


def _table(found: list[Stored]) -> Table:
    """Names last, where there is room for them; what there is to say of a conversion below."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("size", no_wrap=True, justify="right")
    table.add_column("last used", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("name", overflow="fold")
    for each in found:
        name, kind, size, used, state = _row(each)
        told = Text(name)
        if each.source is not None:
            told.append(f"\n{state}", style="dim")
        table.add_row(size, used, kind, told)
    return table
