"""The model as it was published: where it is on this machine, fetched first if need be.

A model is named by a path, by a name on the hub, or not at all: then it is the embedded one.

Tests: tests/unit/loading/test_loading.py.
"""

import logging
from dataclasses import replace
from pathlib import Path

from jitney.backends.kinds import kind_of
from jitney.config import Settings
from jitney.models import embedded
from jitney.models.hub_reference import hub_module, reference_of

_log = logging.getLogger("jitney")


def takes_model(settings: Settings) -> bool:
    """Whether there is a model at all: a backend may have none."""
    return settings.backend == "auto" or kind_of(settings.backend).takes_model


def located(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Settings:
    """The settings with a path in the place of a model's name, fetched first if need be.

    All of `loading` wants them so.
    """
    reference = reference_of(settings.model)
    if reference is None or not takes_model(settings):
        return settings
    found = hub_module("hub").located(reference, settings.cache_dir, progress)
    return replace(settings, model=found)


def foreseen(settings: Settings) -> Settings | None:
    """As `located`, without fetching: None where that would have to be done first."""
    reference = reference_of(settings.model)
    if reference is None or not takes_model(settings):
        return settings
    found = hub_module("hub_cache").find(reference)
    return None if found is None else replace(settings, model=found)


def source_of(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """The file or folder: what was named, or the embedded model, fetched if need be."""
    if settings.model is not None:
        return settings.model
    if not embedded.is_there(settings.cache_dir):
        _log.warning("the embedded model (%s) is being fetched, once", embedded.NAME)
    return embedded.fetch(settings.cache_dir, progress)
