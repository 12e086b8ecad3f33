"""`jitney models rm`: removes models by name, and asks where others share them. Main thread.

All names are looked up before anything is removed.
"""

import sys

from jitney.cli.flags import Given, resolved
from jitney.cli.models import HUB, bytes_text, everything
from jitney.cli.verbs_models import RemoveOptions
from jitney.config import nearest
from jitney.errors import ConfigError, ModelError
from jitney.loading import hub_module
from jitney.models import inventory
from jitney.models.inventory import Stored


def call(options: RemoveOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    cache = resolved(given).settings.cache_dir
    if not options.names:
        raise ConfigError("No model is named; jitney models lists those that are here.")
    here = everything(cache)
    chosen = list(
        {each.path: each for name in options.names for each in _named(name, here)}.values()
    )
    shared = [each for each in chosen if each.kind == HUB]
    if shared and not options.yes and not _agrees(shared):
        sys.stdout.write("Nothing was removed.\n")
        return 0
    for each in chosen:
        if each.kind == HUB:
            _remove_shared(each)
        elif not inventory.remove(each):
            raise ModelError(f"another process is making {each.name}; it was left alone.")
        sys.stdout.write(f"removed {each.name} ({bytes_text(each.size)})\n")
    return 0


def _named(name: str, here: list[Stored]) -> list[Stored]:
    """The models that a name means: that one, or all quants of a repository."""
    found = [each for each in here if each.name.lower() == name.lower()]
    found = found or [
        each
        for each in here
        if each.kind == HUB
        and each.name.lower().startswith((f"{name.lower()}:", f"{name.lower()}/"))
    ]
    if not found:
        close = nearest(name, [each.name for each in here])
        hint = "jitney models lists those that are" if close is None else f"the nearest is {close}"
        raise ModelError(f"There is no model {name} here; {hint}.")
    return found


def _agrees(shared: list[Stored]) -> bool:
    names = ", ".join(each.name for each in shared)
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{names} would be taken out of the hub's cache, which other tools share, and there is "
            "no terminal to ask on; give --yes."
        )
    size = bytes_text(sum(each.size for each in shared))
    sys.stderr.write(
        f"Take {names} ({size}) out of the hub's cache, which other tools share? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _remove_shared(model: Stored) -> None:
    cache = hub_module("hub_cache")
    cache.remove([each for each in cache.held() if each.name == model.name])
