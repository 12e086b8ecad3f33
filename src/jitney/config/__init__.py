"""Settings: one definition for files, environment, flags and the reference page.

Only this package reads `os.environ`. Lower layers do not import it; they get the numbers they need.
Called at start-up, from one thread.
"""

from jitney.config.definitions import Setting
from jitney.config.keyfile import Key, check_distinct, load_keys
from jitney.config.machine import cache_folder, environment
from jitney.config.resolve import Resolved, for_serving, nearest, resolve
from jitney.config.settings import (
    KV_TOKENS_DEFAULT,
    ServeSettings,
    Settings,
    known_serve_settings,
    known_settings,
)

__all__ = [
    "KV_TOKENS_DEFAULT",
    "Key",
    "Resolved",
    "ServeSettings",
    "Setting",
    "Settings",
    "cache_folder",
    "check_distinct",
    "environment",
    "for_serving",
    "known_serve_settings",
    "known_settings",
    "load_keys",
    "nearest",
    "resolve",
]
