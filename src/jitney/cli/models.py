"""`jitney models`: lists and removes the models on this machine. Main thread.

Fetches nothing.

Tests: tests/e2e/test_hub.py.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitney.backends.kinds import all_kinds
from jitney.backends.trials.trial import forget
from jitney.cli.terminal import agrees
from jitney.cli.verbs import ModelsOptions, PruneOptions, RemoveOptions
from jitney.config import Resolved, nearest
from jitney.errors import ConfigError, ModelError
from jitney.models import inventory
from jitney.models.files import disk_errors
from jitney.models.inventory import HUB, StoredModel, stored_models
from jitney.text.printable import printable

NOTHING = "There is no model here yet; jitney pull fetches one.\n"


def call(options: ModelsOptions, resolved: Resolved) -> None:
    """Run `jitney models list`."""
    found = stored_models(resolved.settings.cache_dir)
    if options.json:
        sys.stdout.write(models_json(found) + "\n")
    elif not found:
        sys.stdout.write(NOTHING)
    elif sys.stdout.isatty():
        Console(highlight=False).print(_table(found))
    else:
        # For a program, lines are not broken.
        for each in found:
            sys.stdout.write("\t".join(_row(each)) + "\n")


def remove(options: RemoveOptions, resolved: Resolved) -> None:
    """Run `jitney models rm`. All names are looked up before anything is removed."""
    cache = resolved.settings.cache_dir
    if not options.names:
        raise ConfigError("No model is named; jitney models lists all models here.")
    here = stored_models(cache)
    chosen = list(
        {each.path: each for name in options.names for each in _find(name, here)}.values()
    )
    shared = [each for each in chosen if each.kind == HUB]
    if shared and not options.yes and not _confirm(shared):
        sys.stdout.write("Nothing was removed.\n")
        return
    for each in chosen:
        if not inventory.remove(each):
            raise ModelError(f"Another process is making {each.name}; it was left alone.")
        sys.stdout.write(f"removed {each.name} ({bytes_text(each.size)})\n")


def prune(options: PruneOptions, resolved: Resolved) -> None:
    """Run `jitney models prune`."""
    cache = resolved.settings.cache_dir
    with disk_errors(f"{cache} could not be pruned"):
        read = [name for kind in all_kinds() for name in kind.conversions]
        freed = inventory.prune(cache, read) + forget(cache)
    exactly = f" ({freed} bytes)" if freed >= 2**10 else ""
    sys.stdout.write(f"{bytes_text(freed)} freed{exactly}\n")


def models_json(found: list[StoredModel]) -> str:
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
    """Bytes for people, in a suitable unit."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def _source_text(source: str) -> str:
    """The source of a conversion; in the hub's cache, the repository."""
    found = [part for part in Path(source).parts if part.startswith("models--")]
    return found[-1].removeprefix("models--").replace("--", "/", 1) if found else source


def _row(each: StoredModel) -> tuple[str, ...]:
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


def _table(found: list[StoredModel]) -> Table:
    """Names come last, where they have room; the state of a conversion is below its name."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("size", no_wrap=True, justify="right")
    table.add_column("last used", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("name", overflow="fold")
    for each in found:
        name, kind, size, used, state = _row(each)
        cell = Text(name)
        if each.source is not None:
            cell.append(f"\n{state}", style="dim")
        table.add_row(size, used, kind, cell)
    return table


def _find(name: str, here: list[StoredModel]) -> list[StoredModel]:
    """The models with this name, or all quants of the repository with this name."""
    found = [each for each in here if each.name.lower() == name.lower()]
    found = found or [
        each
        for each in here
        if each.kind == HUB
        and each.name.lower().startswith((f"{name.lower()}:", f"{name.lower()}/"))
    ]
    if not found:
        close = nearest(name, [each.name for each in here])
        hint = "jitney models lists all models" if close is None else f"the nearest is {close}"
        raise ModelError(f"There is no model {name} here; {hint}.")
    return found


def _confirm(shared: list[StoredModel]) -> bool:
    names = ", ".join(each.name for each in shared)
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{names} would be removed from the hub's cache, which other tools share, and there is "
            "no terminal to ask on; give --yes."
        )
    size = bytes_text(sum(each.size for each in shared))
    return agrees(f"Remove {names} ({size}) from the hub's cache, which other tools share?")
