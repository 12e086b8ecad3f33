"""Tests of the server's settings and of the file of keys."""

from pathlib import Path

import pytest

from jitney.config import config_reference, known_serve_settings, load_keys, resolve
from jitney.config.keyfile import EXAMPLE, FIELDS
from jitney.core.request import Priority
from jitney.errors import ConfigError


def test_server_settings_come_from_everywhere(tmp_path: Path) -> None:
    """Guards one definition: file, environment and flags, each over the last."""
    file = tmp_path / "jitney.yaml"
    file.write_text("port: 9000\nhost: 0.0.0.0\nmax_num_seqs: 4\nserved_model_name: [a, b]\n")
    environ = {"JITNEY_PORT": "9001", "JITNEY_API_KEY": "one,two"}
    found = resolve({"shutdown_timeout": "5", "port": None}, file, environ)
    serving = found.serving
    assert (serving.port, serving.host, serving.shutdown_timeout) == (9001, "0.0.0.0", 5.0)
    assert serving.served_model_name == ("a", "b")
    assert serving.api_key == ("one", "two")
    assert found.settings.max_num_seqs == 4
    assert found.sources["port"] == "environment JITNEY_PORT"
    assert found.sources["read_timeout"] == "default"
    assert set(found.sources) >= {known.name for known in known_serve_settings()}


def test_python_callers_have_no_server_settings() -> None:
    """Guards `LLM(port=...)`: a mistake, not something to ignore."""
    with pytest.raises(ConfigError, match="port"):
        resolve({"port": 1}, None, {}, given_as="argument")


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", "70000"), ("port", "x"), ("host", ""), ("api_key", "a,,b"), ("body_limit", "1")],
)
def test_bad_values_are_refused(name: str, value: str) -> None:
    """Guards the start."""
    with pytest.raises(ConfigError, match=name):
        resolve({name: value}, None, {})


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "https://app.example",
        "http://127.0.0.1:3000",
        "http://[::1]:8080,tauri://localhost",
        "chrome-extension://abcdef",
    ],
)
def test_origins_that_browsers_send(origin: str) -> None:
    """Guards pages of every kind."""
    found = resolve({"cors_origin": [origin]}, None, {})
    assert found.serving.cors_origin == tuple(origin.split(","))


@pytest.mark.parametrize(
    "origin",
    [
        *("foo bar", "app.example", "https://app.example/", "https://App.example", "null"),
        *("https://app.example:443", "http://app.example:80", "http://a:70000", "http://a:0"),
        *("https://*.example", "https://me@app.example", "//app.example"),
    ],
)
def test_origins_that_no_browser_sends(origin: str) -> None:
    """Guards the operator: such an origin would allow nobody, and nothing would say why."""
    with pytest.raises(ConfigError, match=r"cors_origin.*https://app\.example"):
        resolve({"cors_origin": [origin]}, None, {})


def test_a_bad_key_is_not_repeated() -> None:
    """Guards secrets: not even a wrong one is printed."""
    with pytest.raises(ConfigError) as refused:
        resolve({"api_key": ["hush\x00hush"]}, None, {})
    assert "hush" not in str(refused.value)


def test_fcfs_is_fifo() -> None:
    """Guards vLLM's command lines."""
    assert resolve({"scheduling_policy": "fcfs"}, None, {}).settings.policy == "fifo"


def keys_in(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
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
    assert (search.queue_share, search.running_share) == (0.25, 1.0)
    assert (night.queue_share, night.running_share) == (None, None)
    assert (night.secret, night.priority_max) == ("secret-of-night", Priority.CRITICAL)
    assert night.requests_per_minute is None


def test_the_example_of_the_page_is_a_file_of_keys(tmp_path: Path) -> None:
    """Guards the page: what it shows can be pasted, and it names every field."""
    file = keys_in(tmp_path, EXAMPLE)
    assert [key.name for key in load_keys(file, {"NIGHTLY_KEY": "a-secret"})] == [
        "search",
        "nightly",
    ]
    page = config_reference()
    assert EXAMPLE in page
    assert all(f"| `{name}` |" in page for name in FIELDS)


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys: []",
        "keys: {a: b}",
        "keys: [a]",
        "keys: [{name: a}]",
        "keys: [{name: a, key: secret-1, key_env: X}]",
        "keys: [{name: a, key: short}]",
        "keys: [{name: a, key_env: MISSING}]",
        "keys: [{name: a, key: secret-1, prioritty: low}]",
        "keys: [{name: a, key: secret-1, priority: urgent}]",
        "keys: [{name: a, key: secret-1, requests_per_minute: 0}]",
        "keys: [{name: a, key: secret-1, tokens_per_minute: .inf}]",
        "keys: [{name: a, key: secret-1, queue_share: 0}]",
        "keys: [{name: a, key: secret-1, queue_share: 50}]",
        "keys: [{name: a, key: secret-1, running_share: half}]",
        "keys: [{name: a, key: secret-1, running_share: true}]",
        "keys: [{name: a, key: secret-1, running_share: .nan}]",
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
