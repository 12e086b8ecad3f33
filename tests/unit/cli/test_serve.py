"""Tests of `jitney.cli.serve`: sockets, addresses and the line to paste."""

import socket

import pytest

from jitney.cli.serve import bind, read_keys, url_of
from jitney.config import ServeSettings
from jitney.errors import ConfigError


def test_a_free_port_is_bound_and_shown() -> None:
    """Guards port 0, and the address that people open."""
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")


def test_a_port_in_use_and_a_host_that_is_none() -> None:
    """Guards the two common mistakes: a sentence each."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--port"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="--host"):
        bind("no.such.host.invalid", 0)


def test_keys_of_flags_have_names() -> None:
    """Guards records and fairness: each key is someone."""
    keys = read_keys(ServeSettings(api_key=("one", "two")))
    assert [(key.name, key.secret) for key in keys] == [("key-1", "one"), ("key-2", "two")]
    assert read_keys(ServeSettings()) == ()
