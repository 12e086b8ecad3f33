"""What one key sees of another's requests: that they run and wait, in numbers, and no more."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.config import Key
from jitney.core.scheduler_settings import Policy
from tests.e2e.server.harness import Running, World, check_error, request_bytes, running, wait_until

KEYS = {name: f"secret-of-{name}" for name in ("one", "two")}
SLOW = FakeSettings(slots=32, eos_period=0, kv_tokens=8192, tick_s=0.01, sleeps=True)


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture
def server() -> Iterator[Running]:
    """One slot, and two keys."""
    keys = tuple(Key(name=name, secret=secret) for name, secret in KEYS.items())
    world = World(backend=SLOW, keys=keys, sequences=1, policy=Policy.PRIORITY)
    with running(world) as one:
        yield one


@contextmanager
def asking(server: Running, name: str, **fields: Any) -> Iterator[None]:
    """A request that runs or waits until the block is left."""
    body = {"prompt": "hello", "max_tokens": 3000, **fields}
    key = f"Authorization: Bearer {KEYS[name]}"
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", body, key))
        yield


def test_an_unread_trace_keeps_no_other_key_from_theirs(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the trace: one key that did not read had every other one refused."""

    def endless(*_: object, **__: object) -> Iterator[bytes]:
        while True:
            yield b" " * 65_536

    with monkeypatch.context() as patch, server.connect() as unread:
        patch.setattr("jitney.server.page.page_routes.trace_slices", endless)
        head = f"Host: localhost\r\nAuthorization: Bearer {KEYS['one']}"
        unread.sendall(f"GET /debug/trace HTTP/1.1\r\n{head}\r\n\r\n".encode())
        assert unread.recv(4096).startswith(b"HTTP/1.1 200 ")
        patch.undo()
        check_error(server.get("/debug/trace", **headers("one")), 429)
        assert server.get("/debug/trace", **headers("two")).status_code == 200


def state(server: Running, name: str) -> Any:
    return server.get("/page/state?requests=true", **headers(name)).json()


def names(rows: list[Any]) -> list[str | None]:
    return [row["request"] for row in rows if "request" in row]


def test_another_keys_requests_have_numbers_and_no_name(server: Running) -> None:
    """Guards tenants: ids are their callers' to choose, and a story tells what they sent."""
    with asking(server, "one", request_id="private-one"):
        wait_until(lambda: names(state(server, "one").get("slots", [])) != [], "nothing ran")
        with asking(server, "two", request_id="private-two"):
            wait_until(lambda: len(state(server, "two").get("queue", [])) == 1, "nothing waited")
            for name, other in (("one", "two"), ("two", "one")):
                view = state(server, name)
                (slot,) = (row for row in view["slots"] if row["state"] != "cached")
                (waiting,) = view["queue"]
                assert (slot["request"] is None) == (slot["text"] is None) == (name == "two")
                assert (waiting["request"] is None) == (name == "one")
                assert slot["tokens"] > 0
                assert waiting["tokens"] > 0
                (story,) = names(view["requests"])
                assert story is not None
                assert f"private-{name}" in story
                trace = server.get("/debug/trace", **headers(name)).text
                assert f"private-{other}" not in trace + str(view)
                assert f"private-{name}" in trace + str(view)


def test_another_keys_request_is_not_found(server: Running) -> None:
    """Guards the story of a request against whoever knows or guesses its id."""
    body = {"prompt": "hello", "max_tokens": 4}
    request_id = server.post("/v1/completions", body, **headers("one")).json()["id"]
    path = f"/page/requests/{request_id}"
    assert server.get(path, **headers("one")).json()["completion_tokens"] == 4
    error = check_error(server.get(path, **headers("two")), 404)
    assert error == check_error(server.get("/page/requests/none", **headers("two")), 404)


def test_a_preemption_does_not_name_who_came_first(server: Running) -> None:
    """Guards the other end of a preemption, which stands in the story of this one."""
    with asking(server, "one", request_id="private-one", priority="low"):
        wait_until(lambda: names(state(server, "one").get("slots", [])) != [], "nothing ran")
        body = {"prompt": "hello", "max_tokens": 4, "priority": "high"}
        reply = server.post("/v1/completions", body, **headers("two"))
        assert reply.status_code == 200, reply.text
        (story,) = names(state(server, "one")["requests"])
        details = server.get(f"/page/requests/{story}", **headers("one")).json()
        assert [loss["by"] for loss in details["losses"]] == [None]
