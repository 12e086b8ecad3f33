"""Tests of `jitney.cli.serve`: sockets, addresses and the line to paste."""

import socket
from pathlib import Path

import pytest

from jitney.cli.serve import allowed_hosts, bind, read_keys, url_of
from jitney.config import Key, ServeSettings
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
    with pytest.raises(ConfigError, match="--host"):
        bind("192.0.2.1", 0)  # of nobody, so not of this machine


def test_a_port_is_taken_from_the_moment_that_it_is_bound() -> None:
    """Guards a second server: two may bind one port, and the one that listens later learnt so only
    when it had loaded its model."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} .* in use; give another --port"):
            bind("127.0.0.1", port)


def test_keys_of_flags_have_names() -> None:
    """Guards records and fairness: each key is someone."""
    keys = read_keys(ServeSettings(api_key=("one", "two")))
    assert [(key.name, key.secret) for key in keys] == [("key-1", "one"), ("key-2", "two")]
    assert read_keys(ServeSettings()) == ()


@pytest.mark.parametrize(
    ("flags", "file", "what"),
    [
        (("one-secret", "one-secret"), None, "secret"),
        (("one-secret",), "{name: a, key: one-secret}", "secret"),
        (("one-secret",), "{name: key-1, key: two-secret}", "name"),
    ],
)
def test_no_two_keys_are_one(
    tmp_path: Path, flags: tuple[str, ...], file: str | None, what: str
) -> None:
    """Guards tenants: of two keys with one name or secret, one would be the other."""
    path = None
    if file is not None:
        path = tmp_path / "keys.yaml"
        path.write_text(f"keys: [{file}]")
    with pytest.raises(ConfigError, match=f"with the same {what}") as told:
        read_keys(ServeSettings(api_key=flags, api_key_file=path))
    assert "one-secret" not in str(told.value)


def test_who_may_be_called_by_what_name() -> None:
    """Guards the default: narrow where any page of a browser could call, open elsewhere."""
    key = Key(name="a", secret="a-secret")
    local = ("localhost", "127.0.0.1", "[::1]")
    assert allowed_hosts(ServeSettings(), ()) == local
    assert allowed_hosts(ServeSettings(host="::1"), ()) == local
    assert allowed_hosts(ServeSettings(host="127.0.0.2"), ()) == (*local, "127.0.0.2")
    assert allowed_hosts(ServeSettings(allowed_host=("Box",)), ()) == (*local, "box")
    assert allowed_hosts(ServeSettings(), (key,)) == ()
    assert allowed_hosts(ServeSettings(host="0.0.0.0"), ()) == ()
    assert allowed_hosts(ServeSettings(host="0.0.0.0", allowed_host=("box",)), ()) == ("box",)
