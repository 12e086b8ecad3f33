"""Tests of `jitney.cli.serve`: sockets, addresses and the line to paste."""

import asyncio
import socket
from pathlib import Path
from typing import Any  # Any: values of settings

import pytest

from jitney.cli.serve import announce, bind, check_replicas, url_of
from jitney.config import Key, ServeSettings, Settings
from jitney.core.scheduler_settings import Strategy
from jitney.errors import ConfigError
from jitney.loading.compose import assemble
from jitney.server.application import Application, allowed_hosts, read_keys
from jitney.server.batches import limits
from jitney.server.batches.database import StoreTaken
from jitney.server.batches.store import BatchStore
from tests.unit.server.batches.runner_for_tests import run_until


def test_a_free_port_is_bound_and_shown() -> None:
    """Guards port 0, and the address that people open."""
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("settings", [{}, {"max_wait_ms": 5}])
def test_a_wait_without_a_limit_is_said_at_the_start(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Guards whoever pastes the line: under static without a timer it waits for others."""
    assembly = assemble(Settings(backend="fake", strategy=Strategy.STATIC, **settings))
    lines: list[str] = []
    try:
        application = Application(assembly, ServeSettings(jobs_dir=tmp_path), ())
        with bind("127.0.0.1", 0) as listener:
            announce(application.service, listener, lines.append)
        application.close()
    finally:
        assembly.close(0.0)
    assert any("--max-wait-ms" in line for line in lines) is (not settings)
    assert "  room  sequences of up to 4,096 tokens, 16,384 in memory together" in lines


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


@pytest.mark.parametrize(
    ("serving", "mistake"),
    [
        ({"max_replicas": 3}, "max_replicas is for replicas; give --replicas as well"),
        ({"ray_address": "auto"}, "ray_address is for replicas; give --replicas as well"),
        ({"replicas": 2, "max_replicas": 1}, r"max_replicas \(1\) is below replicas \(2\)"),
    ],
)
def test_settings_of_replicas_fit_together(serving: dict[str, Any], mistake: str) -> None:
    """Guards whoever gave half of them: nothing would have used it."""
    with pytest.raises(ConfigError, match=mistake):
        check_replicas(ServeSettings(**serving))


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
    with pytest.raises(ConfigError, match=f"with the same {what}") as message:
        read_keys(ServeSettings(api_key=flags, api_key_file=path))
    assert "one-secret" not in str(message.value)


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


def test_a_store_that_another_server_has_is_waited_for_in_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards updates on Ray: the ingress that leaves has the store until its last answer."""
    monkeypatch.setattr(limits, "STORE_S", 0.02)
    assembly = assemble(Settings(backend="fake"))
    serving = ServeSettings(jobs_dir=tmp_path)
    first = BatchStore(tmp_path)
    try:
        with pytest.raises(StoreTaken):
            Application(assembly, serving, ())
        application = Application(assembly, serving, (), waits_for_store=True)
        assert application.batches is not None
        assert not application.batches.thread.is_open
        asyncio.run(opened(application, first))
        assert application.batches.thread.is_open
        application.close()
    finally:
        first.close()
        assembly.close(0.0)


async def opened(application: Application, other: BatchStore) -> None:
    """Start, and wait until the store is open that the other one gives back."""
    jobs = application.batches
    assert jobs is not None
    application.start()
    other.close()

    async def is_open() -> bool:
        return jobs.thread.is_open

    await run_until(is_open)
    await jobs.stop()
