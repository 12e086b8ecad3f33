"""Tests of `jitney.config.settings`: the server's. Those of the engine are in test_resolve."""

from dataclasses import make_dataclass
from pathlib import Path
from typing import get_args

import pytest

from jitney.backends.kinds import NAMES
from jitney.config import known_serve_settings, resolve
from jitney.config.definitions import field_texts
from jitney.config.settings import BackendName
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
    assert found.sources["strict"] == "default"
    assert set(found.sources) >= {known.name for known in known_serve_settings()}


def test_where_there_is_no_source_there_is_no_help() -> None:
    """Guards programs that are packed without it: they start all the same."""
    for module in ("types", "sys", "none"):
        assert field_texts(make_dataclass("Made", ["a"], namespace={"__module__": module})) == {}


def test_the_backends_that_can_be_set_are_those_that_can_be_loaded() -> None:
    """Guards `backend`: a name that is offered must exist, and one that exists be offered."""
    assert sorted(get_args(BackendName)) == sorted(["auto", *NAMES])


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
        *("*", "https://app.example", "http://127.0.0.1:3000", "chrome-extension://abcdef"),
        "http://[::1]:8080,tauri://localhost",
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
