"""Models by name: settings with the path of a model in the place of its name on the hub."""

import importlib
from dataclasses import replace
from typing import Any

from jitney.config import Settings
from jitney.errors import MissingDependency
from jitney.models import embedded
from jitney.models.names import reference_of


def located(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Settings:
    """The settings with a path in the place of a model's name, fetched first if need be.

    All of `loading` wants them so.
    """
    reference = reference_of(settings.model)
    if reference is None or settings.backend == "fake":
        return settings
    found = hub_module("hub").located(reference, settings.cache_dir, progress)
    return replace(settings, model=found)


def foreseen(settings: Settings) -> Settings | None:
    """As `located`, without fetching: None where that would have to be done first."""
    reference = reference_of(settings.model)
    if reference is None or settings.backend == "fake":
        return settings
    found = hub_module("hub_cache").find(reference)
    return None if found is None else replace(settings, model=found)


def hub_module(name: str) -> Any:  # Any: a module
    """A module of `jitney.models` that needs the hub's library. Raises MissingDependency."""
    try:
        return importlib.import_module(f"jitney.models.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("huggingface_hub", "httpx2"):
            raise
        raise MissingDependency(
            "models by name need huggingface_hub 2.4 or newer, which is not installed: install "
            "jitney with the extra `hub`, or name a GGUF file."
        ) from error
