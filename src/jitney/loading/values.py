"""The values for a backend's own settings, and the settings that it refuses.

Tests: tests/unit/loading/test_loading.py.
"""

from pathlib import Path

from jitney.backends.kind import Kind, Values
from jitney.backends.kinds import all_kinds
from jitney.config import Settings
from jitney.errors import ConfigError, ModelError
from jitney.loading.model_source import source_of
from jitney.loading.selection import is_given
from jitney.models import embedded


def check_settings(kind: Kind, settings: Settings) -> None:
    """Raise ConfigError for settings that the backend cannot serve with any model."""
    for setting in kind.refused_settings:
        if is_given(settings, setting):
            owners = " or ".join(each.name for each in all_kinds() if setting in each.own_settings)
            instead = f", or use the {owners} backend where it works" if owners else ""
            raise ConfigError(
                f"{setting} is given, and the {kind.name} backend does not have it; leave it "
                f"out{instead}."
            )
    kind.check(settings)


def values_of(kind: Kind, settings: Settings) -> Values:
    """The values of the backend's settings, with the model made ready. Raises a SetupError."""
    check_settings(kind, settings)
    return kind.values(settings, accepted_source(kind, settings) if kind.takes_model else None)


def accepted_source(
    kind: Kind, settings: Settings, progress: embedded.Progress = lambda done, total: None
) -> Path:
    """The published model, fetched if necessary. Raises ModelError where the backend refuses it."""
    source, length = source_of(settings, progress), settings.max_model_len
    reason = kind.refusal(source, length)
    if reason is None:
        return source
    others = [
        each.title
        for each in all_kinds()
        if each.is_automatic and each.name != kind.name and each.refusal(source, length) is None
    ]
    advice = f"use the {' or '.join(others)} backend" if others else "take another model"
    raise ModelError(f"{source} cannot be run by {kind.title}: {reason.rstrip('.')}; {advice}.")
