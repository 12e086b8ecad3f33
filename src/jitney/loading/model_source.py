"""Finds the published model on this machine, and fetches it first if necessary.

The user names a model by a path or by a name on the hub. Without either, it is the embedded model.

Tests: tests/unit/loading/test_loading.py.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from jitney.backends.kind import Kind
from jitney.backends.kinds import all_kinds, kind_of
from jitney.config import Settings
from jitney.errors import ModelError
from jitney.models import embedded
from jitney.models.hub_reference import hub_module, reference_of

_log = logging.getLogger("jitney")


def takes_model(settings: Settings) -> bool:
    """Whether the backend takes a model."""
    return settings.backend == "auto" or kind_of(settings.backend).takes_model


def located(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Settings:
    """The settings with a path in place of a name on the hub; fetches the model if necessary.

    Other functions of `loading` need settings with a path.
    """
    reference = reference_of(settings.model)
    if reference is None or not takes_model(settings):
        return settings
    check = partial(check_loadable, settings)
    found = hub_module("hub").find_or_fetch(reference, settings.cache_dir, progress, check)
    return replace(settings, model=found)


def check_known(settings: Settings, head: Path, name: str) -> None:
    """Raise ModelError where no backend knows the model of this head."""
    _check_head(settings, name, lambda kind: _why_unknown(kind, settings, head))


def check_loadable(settings: Settings, head: Path, name: str) -> None:
    """The same, also where none could load it on this machine now."""
    _check_head(
        settings,
        name,
        lambda kind: _why_unknown(kind, settings, head) or kind.no_room(head, settings),
    )


def _why_unknown(kind: Kind, settings: Settings, head: Path) -> str | None:
    if (reason := kind.value_refusal(settings)) is not None:
        return reason
    try:
        return kind.refusal(head, settings.max_model_len) or kind.unknown(head)
    except ModelError:
        return None  # the file itself says it, with its own name


def _check_head(settings: Settings, name: str, reason_of: Callable[[Kind], str | None]) -> None:
    is_auto = settings.backend == "auto"
    reasons: dict[str, str] = {}
    for kind in all_kinds():
        is_asked = kind.is_automatic() if is_auto else kind.name == settings.backend
        if not kind.takes_model or not is_asked:
            continue
        reason = reason_of(kind)
        if reason is None:
            return
        reasons.setdefault(reason.rstrip("."), kind.title)
    if reasons:
        listed = "; ".join(f"{title}: {reason}" for reason, title in reasons.items())
        raise ModelError(f"{name} was not fetched, because nothing here can run it. {listed}.")


def located_if_fetched(settings: Settings) -> Settings | None:
    """Like `located`, but None where the model must be fetched first."""
    reference = reference_of(settings.model)
    if reference is None or not takes_model(settings):
        return settings
    found = hub_module("hub_cache").find(reference)
    return None if found is None else replace(settings, model=found)


def source_if_there(settings: Settings) -> Path | None:
    """Like `source_of`, but None where the embedded model must be fetched first."""
    if settings.model is None and not embedded.is_there(settings.cache_dir):
        return None
    return settings.model or embedded.path_in(settings.cache_dir)


def source_of(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """The file or folder that the user named, or the embedded model, fetched if necessary."""
    source = source_if_there(settings)
    if source is not None:
        return source
    _log.warning("The embedded model (%s) is being fetched, once", embedded.NAME)
    return embedded.fetch(settings.cache_dir, progress)
