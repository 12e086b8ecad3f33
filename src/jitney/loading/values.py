"""The values for a backend's own settings, and the settings that it refuses.

Tests: tests/unit/loading/test_loading.py.
"""

from jitney.backends.kind import Kind, Values
from jitney.backends.kinds import all_kinds
from jitney.config import Settings
from jitney.errors import ConfigError
from jitney.loading.model_source import source_of
from jitney.loading.selection import is_given


def check_settings(kind: Kind, settings: Settings) -> None:
    """Raise ConfigError for settings that the backend cannot serve with any model."""
    for setting in kind.refused_settings:
        if is_given(settings, setting):
            owners = " or ".join(each.name for each in all_kinds() if setting in each.own_settings)
            raise ConfigError(
                f"{setting} is given, and the {kind.name} backend does not have it; leave it "
                f"out, or use the {owners} backend where it works."
            )
    kind.check(settings)


def values_of(kind: Kind, settings: Settings) -> Values:
    """The values of the backend's settings, with the model made ready. Raises a SetupError."""
    check_settings(kind, settings)
    return kind.values(settings, source_of(settings) if kind.takes_model else None)
