"""What the loading of every backend needs: the model's source, its modules, refusals."""

import importlib
import logging
from pathlib import Path
from typing import Any

from jitney import backends
from jitney.config import Settings
from jitney.errors import ConfigError
from jitney.models import embedded

_log = logging.getLogger("jitney")

Values = dict[str, int | bool | str]
"""What a backend is told, by the names of its settings."""

MAY_DIFFER = "what else is in the batch can change a text here (batch_invariant)"
"""Said where texts are not promised to be equal, and nobody asked for it."""


def source_of(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """The model as it was published: what was named, or the embedded one, fetched if need be."""
    if settings.model is not None:
        return settings.model
    if not embedded.is_there(settings.cache_dir):
        _log.warning("the embedded model (%s) is being fetched, once", embedded.NAME)
    return embedded.fetch(settings.cache_dir, progress)


def loaded(backend: str, module: str) -> Any:  # Any: a module
    """A module of a backend whose libraries are optional and take their time to load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise backends.missing(backend, error) from error


def refuse_dtypes(name: str, settings: Settings) -> None:
    """Refuse what only OpenVINO knows, rather than pass over it."""
    for setting in ("dtype", "kv_cache_dtype"):
        if getattr(settings, setting) != "auto":
            raise ConfigError(
                f"{setting} is given, and the {name} backend has no choice of it; leave it out, "
                "or use the openvino backend where it works."
            )
