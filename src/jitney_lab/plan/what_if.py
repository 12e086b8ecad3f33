"""Other settings, as the user writes them: `max_num_seqs=32,mix=separate,replicas=2`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields

from jitney.config import nearest
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.errors import ConfigError

REPLICAS = "replicas"
WHOLE_MAX = 1000
"""Replicas of a fleet of which each is simulated."""

TIMED = ("max_wait_ms", "target_stall_ms")
MEMORY = ("kv_tokens", "max_model_len", "max_per_sequence")
COMPUTED = ("model_len_max", "wait_s", "stall_s_target")
"""Of the scheduler; the user sets what they are computed from."""

NAMES = frozenset(
    {*(each.name for each in fields(SchedulerSettings)), *TIMED, *MEMORY, REPLICAS} - {*COMPUTED}
)
"""What a simulation depends on. Another model or backend needs another cost."""


@dataclass(frozen=True, slots=True)
class Change:
    """Settings by name, in the user's words, and how many replicas."""

    text: str
    words: Mapping[str, str]
    replicas: int | None = None


@contextmanager
def named(change: Change) -> Iterator[None]:
    """Say of a ConfigError which change it is about."""
    try:
        yield
    except ConfigError as error:
        # The settings as they are have no words of a change.
        change_text = f"--what-if {change.text}: " if change.words else ""
        raise ConfigError(f"{change_text}{error}") from None


def read_change(text: str) -> Change:
    """The changes in one `--what-if`. Raises ConfigError."""
    words: dict[str, str] = {}
    for part in text.split(","):
        name, divider, value = part.partition("=")
        name = name.strip().lower().replace("-", "_")
        if not divider or not value.strip():
            raise ConfigError(
                f"--what-if {text} has a part without a value; write NAME=VALUE with commas "
                "between, for example max_num_seqs=32,mix=separate."
            )
        if name not in NAMES:
            close = nearest(name, NAMES)
            known = f"these can be changed: {', '.join(sorted(NAMES))}"
            hint = known if close is None else f"the nearest is {close}"
            raise ConfigError(f"--what-if cannot change {name}; {hint}.")
        if name in words:
            raise ConfigError(f"--what-if {text} changes {name} twice; leave one out.")
        words[name] = value.strip()
    replicas = words.pop(REPLICAS, None)
    if replicas is None:
        return Change(text, words)
    if not replicas.isdecimal() or not 1 <= int(replicas) <= WHOLE_MAX:
        raise ConfigError(
            f"--what-if has replicas={replicas}; expected a number from 1 to {WHOLE_MAX}."
        )
    return Change(text, words, int(replicas))
