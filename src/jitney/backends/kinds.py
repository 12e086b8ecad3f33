"""The backends by name, and the two ways to build one. Called at start-up, from any thread.

`load` builds a backend in this process. `load_process` builds it in another process, so that a
crash of native code does not end this one.
"""

import importlib
from collections.abc import Mapping
from typing import Any, get_args  # Any: settings before their dataclass has checked them

from jitney.backends.kind import Kind
from jitney.backends.process.client import ProcessBackend
from jitney.backends.shared.prefix_place import PrefixPlace
from jitney.config.settings import BackendName
from jitney.core.backend import Backend
from jitney.errors import ConfigError

NAMES: tuple[str, ...] = tuple(name for name in get_args(BackendName) if name != "auto")
"""jitney prefers the first ones."""


def kind_of(name: str) -> Kind:
    """The kind of this name. Raises ConfigError where there is none."""
    if name not in NAMES:
        raise ConfigError(f"There is no backend {name!r}; choose one of {', '.join(NAMES)}.")
    kind: Kind = importlib.import_module(f"jitney.backends.{name}.kind").KIND
    return kind


def all_kinds() -> list[Kind]:
    """Every kind, in the order of `NAMES`."""
    return [kind_of(name) for name in NAMES]


def load(name: str, settings: Mapping[str, Any], prefixes: PrefixPlace | None = None) -> Backend:
    """Build a backend in this process, with a disk for prefixes if its kind can have one.

    Raises a SetupError.
    """
    kind = kind_of(name)
    backend = kind.load(settings)
    if prefixes is not None and kind.stores_prefixes:
        importlib.import_module("jitney.backends.shared.prefix_disk").connect(backend, prefixes)
    return backend


def load_process(
    name: str, settings: Mapping[str, Any], prefixes: PrefixPlace | None = None
) -> ProcessBackend:
    """Build a backend in another process, which ends when this process does."""
    return ProcessBackend(kind_of(name).name, dict(settings), prefixes=prefixes)
