"""The fake backend as a kind: no library and no model. See `jitney.backends.kind`.

Tests: tests/unit/backends/test_kinds.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: plain values for the backend's settings

from jitney.backends.fake.script import read_script
from jitney.backends.kind import SAME_TEXTS, Kind, Values
from jitney.backends.shared.sizing import kv_tokens_of, pool_slots
from jitney.config import KV_TOKENS_DEFAULT, Settings
from jitney.errors import ConfigError

MODEL_LEN_MAX = 4096
SCRIPT_LEN_MAX = 262_144
SCRIPT_KV_TOKENS = 2**20
"""Agents send long prompts, and here a byte is a token, which takes no memory but its number."""


def check(settings: Settings) -> None:
    """Refuse settings that have no meaning here. Raises ConfigError."""
    if settings.batch_invariant == "off":
        raise ConfigError(
            "batch_invariant is off, and the fake backend is the same in every batch; leave it out."
        )
    if settings.memory_limit is not None:
        raise ConfigError(
            "The fake backend has no bytes to count; give kv_tokens, not memory_limit."
        )


def values(settings: Settings, source: Path | None) -> Values:
    """The values for `FakeSettings`."""
    script = "" if settings.script is None else read_script(settings.script)
    kv_tokens = kv_tokens_of(settings, SCRIPT_KV_TOKENS if script else KV_TOKENS_DEFAULT)
    length = SCRIPT_LEN_MAX if script else MODEL_LEN_MAX
    return {
        "slots": pool_slots(settings.max_num_seqs),
        "kv_tokens": kv_tokens,
        "model_len_max": settings.max_model_len or min(length, kv_tokens),
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "script": script,
    }


def trial_values(model: Path, folder: Path, numbers: Mapping[str, Any]) -> Values:
    """The values for a trial, in which no token is the end token."""
    return {"eos_period": 0, "model_len_max": 512, **numbers}


KIND = Kind(
    name="fake",
    title="the fake backend",
    classes=("FakeSettings", "FakeBackend"),
    models="none: its next token is a hash, or what a script says, for trying things out",
    runs_on="anything",
    memory="single tokens, which are only counted",
    block_tokens=1,
    texts=SAME_TEXTS,
    takes_model=False,
    is_automatic=lambda: False,
    own_settings={"script": "only its answers come from a script"},
    check=check,
    failure=lambda settings: None,
    stores_prefixes=True,
    values=values,
    trial_values=trial_values,
)
