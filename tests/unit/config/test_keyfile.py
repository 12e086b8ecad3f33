"""Tests of `jitney.config.keyfile`: what a file of keys may hold, and what is refused."""

from pathlib import Path

import pytest

from jitney.config import Key, load_keys
from jitney.config.keyfile import FIELDS, MINUTES_PER_DAY, SECRET_CHARACTERS_MIN
from jitney.core.limits import QUEUE_SHARE, RUNNING_SHARE
from jitney.core.request import Priority
from jitney.errors import ConfigError
from scripts.config_page import EXAMPLE_KEYS, config_reference


def keys_in(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_file_of_keys(tmp_path: Path) -> None:
    """Guards every field of a key."""
    text = """
keys:
  - name: search
    key: secret-of-search
    priority: high
    requests_per_minute: 600
    tokens_per_minute: 150000.5
    batch_tokens_per_day: 5e6
    cache_scope: shared
    queue_share: 0.25
    running_share: 1
  - name: night
    key_env: NIGHT_KEY
"""
    search, night = load_keys(keys_in(tmp_path, text), {"NIGHT_KEY": "secret-of-night"})
    assert (search.name, search.secret, search.scope) == ("search", "secret-of-search", "shared")
    assert search.priority_max is Priority.HIGH
    assert (search.requests_per_minute, search.tokens_per_minute) == (600.0, 150_000.5)
    assert search.batch_tokens_max == 5_000_000.0
    assert (search.queue_share, search.running_share) == (0.25, 1.0)
    assert (night.queue_share, night.running_share) == (None, None)
    assert (night.secret, night.priority_max) == ("secret-of-night", Priority.CRITICAL)
    assert night.requests_per_minute is None


def test_batches_have_the_rate_of_their_key_for_a_day_unless_it_says_otherwise() -> None:
    """Guards a rate that is a budget: without a word, batches would pass it."""
    assert Key(name="a", secret="secret-1", tokens_per_minute=10).batch_tokens_max == 14_400
    assert Key(name="a", secret="secret-1", requests_per_minute=10).batch_tokens_max is None
    both = Key(name="a", secret="secret-1", tokens_per_minute=10, batch_tokens_per_day=1e12)
    assert both.batch_tokens_max == 1e12


def test_the_example_of_the_page_is_a_file_of_keys(tmp_path: Path) -> None:
    """Guards the page: what it shows can be pasted, and it names every field."""
    file = keys_in(tmp_path, EXAMPLE_KEYS)
    keys = load_keys(file, {"NIGHTLY_KEY": "a-secret"})
    assert [key.name for key in keys] == ["search", "nightly"]
    page = config_reference()
    assert EXAMPLE_KEYS in page
    assert all(f"| `{name}` |" in page for name in FIELDS)


def test_the_numbers_that_the_fields_tell_are_in_force() -> None:
    """Guards their texts, which are written by hand."""
    assert f"of {SECRET_CHARACTERS_MIN} characters or more" in FIELDS["key"].help
    assert f"Default: {MINUTES_PER_DAY:,} times" in FIELDS["batch_tokens_per_day"].help
    assert f"Default: {QUEUE_SHARE:g}, " in FIELDS["queue_share"].help
    assert f"Default: {RUNNING_SHARE:g}, " in FIELDS["running_share"].help


def test_an_unknown_field_of_a_key_is_told_what_there_is(tmp_path: Path) -> None:
    """Guards the hint: a name that is far from all of them is no help."""
    for name, hint in (("rate", "cache_scope"), ("prioritty", "the nearest is priority")):
        file = keys_in(tmp_path, f"keys: [{{name: a, key: secret-1, {name}: 5}}]")
        with pytest.raises(ConfigError, match=hint):
            load_keys(file, {})


def test_a_missing_key_file_is_called_what_it_is(tmp_path: Path) -> None:
    """Guards the sentence: it is not a settings file, and its ending is not what is wrong."""
    with pytest.raises(ConfigError, match="There is no key file"):
        load_keys(tmp_path / "nope", {})


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_key_file_that_others_may_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    """Guards the keys from other users of the machine; a group may be the server's own."""
    load_keys(keys_in(tmp_path, "keys: [{name: a, key: secret-1}]", mode), {})
    assert (f"chmod 600 {tmp_path}" in caplog.text) == warns


@pytest.mark.parametrize(
    "text",
    [
        *("", "keys: []", "keys: {a: b}", "keys: [a]", "keys: [{name: a}]"),
        "keys: [{name: a, key: short}]",
        "keys: [{name: a, key_env: MISSING}]",
        *(
            f"keys: [{{name: a, key: secret-1, {field}}}]"
            for field in (
                *("key_env: X", "prioritty: low", "priority: urgent", "requests_per_minute: 0"),
                *("tokens_per_minute: .inf", "batch_tokens_per_day: 0", "queue_share: 0"),
                *("queue_share: 50", "running_share: half", "running_share: true"),
                "running_share: .nan",
            )
        ),
        "keys: [{name: a, key: secret-1}, {name: a, key: secret-2}]",
        "keys: [{name: a, key: secret-1}, {name: b, key: secret-1}]",
        "keys: [{name: a, key: secret-1}]\nmore: 1",
    ],
)
def test_files_of_keys_that_are_wrong(tmp_path: Path, text: str) -> None:
    """Guards the start; a secret never stands in the message."""
    with pytest.raises(ConfigError) as refused:
        load_keys(keys_in(tmp_path, text), {})
    assert "secret-1" not in str(refused.value)
