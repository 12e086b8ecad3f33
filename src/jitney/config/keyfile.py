"""Reads the keys of the server's callers from a file.

`KeyFields` explains each field. Called at start-up, from one thread.
"""

import logging
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from jitney.config import file as settings_file
from jitney.config.definitions import Group, Setting, defined_settings, setting
from jitney.config.forms import number, one_of, read_named, text_line
from jitney.config.resolve import nearest
from jitney.core.limits import RETRY_AFTER_S_MAX
from jitney.core.request import Priority
from jitney.errors import ConfigError

_log = logging.getLogger(__name__)

KEYS_MAX = 1000
_SECRETS = Path("/run/secrets")
"""Where a container has them, for itself alone."""

RATE_MIN = 60 / RETRY_AFTER_S_MAX
"""One request in the longest time that a reply asks a caller to wait."""

RATE_MAX = 1e12
MINUTES_PER_DAY = 1440
SECRET_CHARACTERS_MIN = 8
TEXT_CHARACTERS_MAX = 256
_TEXT = text_line(1, TEXT_CHARACTERS_MAX)
_SECRET = text_line(SECRET_CHARACTERS_MIN, TEXT_CHARACTERS_MAX)
_RATE = number(RATE_MIN, RATE_MAX)
_PER_DAY = number(1.0, RATE_MAX)
_SHARE = number(0.0, 1.0, above=True)
_PRIORITY = one_of(tuple(each.name.lower() for each in Priority))


_field = partial(setting, Group.SERVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFields:
    """A key as a file has it. The text below a field is that of the reference page."""

    name: Annotated[str, _TEXT] = _field()
    """The caller's name in the log, on the page, and as a tenant of the policy `fair`."""
    key: Annotated[str, _SECRET] = _field()
    """The secret that callers send, of 8 characters or more."""
    key_env: Annotated[str, _TEXT] = _field()
    """In place of `key`: the environment variable that holds the secret."""
    priority: Annotated[str, _PRIORITY] = _field()
    """The highest priority that it may ask for: `low`, `normal`, `high` or `critical`. Default:
    `critical`."""
    requests_per_minute: Annotated[float, _RATE] = _field()
    """Requests that it may send in a minute; a call for completions counts once for each of them,
    prompts times `n`. Default: no limit."""
    tokens_per_minute: Annotated[float, _RATE] = _field()
    """Tokens that it may use in a minute, of prompts and completions. Default: no limit."""
    batch_tokens_per_day: Annotated[float, _PER_DAY] = _field()
    """Tokens that its batches may use in a day, of prompts and completions; then they wait.
    Default: 1,440 times `tokens_per_minute`, and without that no limit."""
    queue_share: Annotated[float, _SHARE] = _field()
    """The part of the queue that its requests may fill, above 0 and up to 1: of
    `max_num_queued_reqs` and `max_num_queued_tokens`. Default: 0.5, and 1 for the only key."""
    running_share: Annotated[float, _SHARE] = _field()
    """The part of `max_num_seqs` that its sequences may take, above 0 and up to 1, and at least one
    sequence. Default: 0.75, and 1 for the only key."""
    cache_scope: Annotated[str, _TEXT] = _field()
    """Keys of one scope share cached prefixes. Default: its name."""


FIELDS: Mapping[str, Setting] = MappingProxyType(
    {each.name: each for each in defined_settings(KeyFields)}
)
"""The fields of a key by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A caller and its limits. None is no limit.

    Callers share cached prefixes only within one `scope`.
    """

    name: str
    secret: str = field(repr=False)
    priority_max: Priority = Priority.CRITICAL
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    batch_tokens_per_day: float | None = None
    scope: str | None = None
    queue_share: float | None = None
    running_share: float | None = None
    """Its shares of the queue and of the running sequences. None is all for the only key, and the
    default of `jitney.core.limits` for one of several."""

    @property
    def batch_tokens_max(self) -> float | None:
        """Tokens of its batches in a day: as many as given, or as its rate has in a day."""
        if self.batch_tokens_per_day is None and self.tokens_per_minute is not None:
            return self.tokens_per_minute * MINUTES_PER_DAY
        return self.batch_tokens_per_day

    @property
    def cache_scope(self) -> str:
        """Its `scope`, or else its name."""
        return self.name if self.scope is None else self.scope


def load_keys(file: Path, environ: Mapping[str, str]) -> tuple[Key, ...]:
    """The keys in this file. Raises ConfigError, which never repeats a secret.

    Warns of a file that other users may read.
    """
    tree = settings_file.load(file, "key")
    entries = tree.get("keys")
    if set(tree) != {"keys"} or not isinstance(entries, list) or not entries:
        raise ConfigError(f"The key file {file} must hold a list under the name keys.")
    if len(entries) > KEYS_MAX:
        raise ConfigError(f"The key file {file} holds more than {KEYS_MAX} keys.")
    keys = tuple(_read(entry, f"{file}, key {at}", environ) for at, entry in enumerate(entries, 1))
    check_distinct(keys, f"The key file {file} has")
    if file.stat().st_mode & stat.S_IROTH and _SECRETS not in file.parents:
        _log.warning("Its mode lets other users of this machine read %s: chmod 600 %s", file, file)
    return keys


def check_distinct(keys: tuple[Key, ...], who_has: str) -> None:
    """Refuse two keys with one name or one secret. Raises ConfigError."""
    for what in ("name", "secret"):
        if len({getattr(key, what) for key in keys}) < len(keys):
            # Show neither the secret, nor the name, which says little for keys of flags.
            raise ConfigError(f"{who_has} two keys with the same {what}; change one of them.")


def _read(entry: object, where: str, environ: Mapping[str, str]) -> Key:
    if not isinstance(entry, dict) or not all(isinstance(name, str) for name in entry):
        raise ConfigError(f"{where} must have a name and a key.")
    for name in entry:
        if name not in FIELDS:
            close = nearest(name, FIELDS)
            known = ", ".join(FIELDS)
            hint = f"the nearest is {close}" if close is not None else f"a key has {known}"
            raise ConfigError(f"{where} has {name!r:.80}; {hint}.")
    present = {name: value for name, value in entry.items() if value is not None}
    if "name" not in present or ("key" in present) == ("key_env" in present):
        raise ConfigError(f"{where} must have a name, and one of key and key_env.")
    # Any: of every field's type
    values: dict[str, Any] = {
        name: _read_field(name, value, where) for name, value in present.items()
    }
    variable = values.pop("key_env", None)
    if variable is not None:
        if not environ.get(variable, "").strip():
            raise ConfigError(f"{where}: the environment has no {variable}.")
        values["key"] = _read_field("key", environ[variable], where)
    return Key(
        secret=values.pop("key"),
        priority_max=Priority[values.pop("priority", "critical").upper()],
        scope=values.pop("cache_scope", None),
        **values,
    )


def _read_field(name: str, value: object, where: str) -> Any:  # Any: of the field's type
    # The message does not repeat the value: any of them may be a secret, in the wrong place.
    return read_named(FIELDS[name].form, name, value, f" in {where}", is_secret=True)
