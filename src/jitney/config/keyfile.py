"""The keys of the server's callers, and the file that they are read from.

Called at start-up, from one thread.

`EXAMPLE` shows one, and `FIELDS` says what each field means.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jitney.config import file as settings_file
from jitney.config.resolve import nearest
from jitney.core.limits import QUEUE_SHARE, RETRY_AFTER_S_MAX, RUNNING_SHARE
from jitney.core.request import Priority
from jitney.errors import ConfigError

EXAMPLE = """\
keys:
  - {name: search, key: a-secret-of-search, priority: high, requests_per_minute: 600}
  - name: nightly
    key_env: NIGHTLY_KEY
    tokens_per_minute: 100000
    queue_share: 0.25
"""

KEYS_MAX = 1000
RATE_MIN = 60 / RETRY_AFTER_S_MAX
"""One in the longest time that a caller is ever told to wait."""

SECRET_CHARACTERS_MIN = 8
TEXT_CHARACTERS_MAX = 256
FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "Who it is: in the log, on the page, and as a tenant of the policy `fair`.",
        "key": f"The secret that callers send, of {SECRET_CHARACTERS_MIN} characters or more.",
        "key_env": "In place of `key`: the environment variable that holds the secret.",
        "priority": "The highest that it may ask for: `low`, `normal`, `high` or `critical`. "
        "Default: `critical`.",
        "requests_per_minute": "Requests that it may send in a minute; a call for completions "
        "counts once for each of them, prompts times `n`. Default: no limit.",
        "tokens_per_minute": "Tokens that it may use in a minute, of prompts and completions. "
        "Default: no limit.",
        "queue_share": "The part of the queue that its requests may fill, above 0 and up to 1: of "
        "`max_num_queued_reqs` and `max_num_queued_tokens`. "
        f"Default: {QUEUE_SHARE:g}, and 1 for the only key.",
        "running_share": "The part of the places to run in, `max_num_seqs`, that it may take, "
        "above 0 and up to 1, and one place at least. "
        f"Default: {RUNNING_SHARE:g}, and 1 for the only key.",
        "cache_scope": "Keys of one scope share cached prefixes. Default: its name.",
    }
)
"""What a key may have, and what the reference page says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Someone who may call, and how much. None is no limit.

    `scope` is the boundary of prefix reuse: callers share cached prefixes only within one.
    """

    name: str
    secret: str = field(repr=False)
    priority_max: Priority = Priority.CRITICAL
    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    scope: str | None = None
    queue_share: float | None = None
    running_share: float | None = None
    """Parts of the queue and of the places that it may hold. None is all of them for the only
    key, and for one of several what `jitney.core.limits` says."""

    @property
    def cache_scope(self) -> str:
        """Its own name unless it was given a scope to share."""
        return self.name if self.scope is None else self.scope


def load_keys(file: Path, environ: Mapping[str, str]) -> tuple[Key, ...]:
    """The keys in this file. Raises ConfigError; it never repeats a key."""
    tree = settings_file.load(file, "key")
    entries = tree.get("keys")
    if set(tree) != {"keys"} or not isinstance(entries, list) or not entries:
        raise ConfigError(f"The key file {file} must hold a list under the name keys.")
    if len(entries) > KEYS_MAX:
        raise ConfigError(f"The key file {file} holds more than {KEYS_MAX} keys.")
    keys = tuple(_read(entry, f"{file}, key {at}", environ) for at, entry in enumerate(entries, 1))
    check_apart(keys, f"The key file {file} has")
    return keys


def check_apart(keys: tuple[Key, ...], who_has: str) -> None:
    """That no two keys are called alike, or are alike. Raises ConfigError."""
    for what in ("name", "secret"):
        if len({getattr(key, what) for key in keys}) < len(keys):
            # Without the name, which says little for keys of flags, or the secret.
            raise ConfigError(f"{who_has} two keys that have one {what}; change one of them.")


def _read(entry: object, where: str, environ: Mapping[str, str]) -> Key:
    if not isinstance(entry, dict) or not all(isinstance(name, str) for name in entry):
        raise ConfigError(f"{where} must have a name and a key.")
    for name in entry:
        if name not in FIELDS:
            close = nearest(name, FIELDS)
            known = ", ".join(FIELDS)
            hint = f"the nearest is {close}" if close is not None else f"a key has {known}"
            raise ConfigError(f"{where} has {name!r:.80}; {hint}.")
    priority = entry.get("priority", "critical")
    if not isinstance(priority, str) or priority.upper() not in Priority.__members__:
        raise ConfigError(f"{where}: priority is low, normal, high or critical.")
    scope = None
    if "cache_scope" in entry:
        scope = _text(entry, "cache_scope", where)
    return Key(
        name=_text(entry, "name", where),
        secret=_secret(entry, where, environ),
        priority_max=Priority[priority.upper()],
        requests_per_min=_rate(entry, "requests_per_minute", where),
        tokens_per_min=_rate(entry, "tokens_per_minute", where),
        scope=scope,
        queue_share=_share(entry, "queue_share", where),
        running_share=_share(entry, "running_share", where),
    )


def _secret(entry: Mapping[str, Any], where: str, environ: Mapping[str, str]) -> str:
    if ("key" in entry) == ("key_env" in entry):
        raise ConfigError(f"{where} must have one of key and key_env.")
    if "key" in entry:
        secret = _text(entry, "key", where)
    else:
        variable = _text(entry, "key_env", where)
        secret = environ.get(variable, "").strip()
        if not secret:
            raise ConfigError(f"{where}: the environment has no {variable}.")
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise ConfigError(f"{where}: a key has at least {SECRET_CHARACTERS_MIN} characters.")
    return secret


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not 0 < len(value.strip()) <= TEXT_CHARACTERS_MAX:
        raise ConfigError(
            f"{where}: {name} must be a text of 1 to {TEXT_CHARACTERS_MAX} characters; "
            "what looks like a number or a date is to be put in quotes."
        )
    return value.strip()


def _rate(entry: Mapping[str, Any], name: str, where: str) -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if not _is_number(value) or value < RATE_MIN:
        raise ConfigError(f"{where}: {name} must be a number, and {RATE_MIN:g} at least.")
    return float(value)


def _share(entry: Mapping[str, Any], name: str, where: str) -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if not _is_number(value) or not 0 < value <= 1:
        raise ConfigError(
            f"{where}: {name} is a part of what there is; give a number above 0 and up to 1."
        )
    return float(value)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
