"""How the server is, as the page has it: always what /ready says, in every state there is."""

import threading
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.core.batch import Batch, Outcome
from jitney.errors import BackendCrashed
from jitney.server import limits
from tests.e2e.server.harness import WAIT_S, Running, World, running, wait_until
from tests.e2e.server.pace import BackendFront

SLOW = FakeSettings(slots=32, eos_period=0, kv_tokens=8192, tick_s=0.01, sleeps=True)


class Fragile(BackendFront):
    """A backend that stands still or falls, and comes back, when told so."""

    def __init__(self, backend: Any) -> None:  # Any: a backend
        super().__init__(backend)
        self.may_run, self.may_return = threading.Event(), threading.Event()
        self.may_run.set()
        self.falls = False

    def execute(self, batch: Batch) -> Outcome:
        assert self.may_run.wait(WAIT_S), "nobody let it run"
        if self.falls:
            raise BackendCrashed("it fell.")
        return super().execute(batch)

    def reset(self) -> None:
        assert self.may_return.wait(WAIT_S), "nobody let it return"
        self.falls = False
        self.backend.reset()


def status(server: Running) -> str:
    """What the page shows, which is what /ready says; asked again where that changed meanwhile."""
    for _ in range(20):
        before = server.get("/ready").json()
        health = server.get("/page/state").json()["health"]
        if server.get("/ready").json()["status"] == before["status"] == health["status"]:
            break
    assert health["status"] == before["status"]
    assert bool(health["reason"]) == (health["status"] != "ok")
    return str(health["status"])


def test_a_drain_is_shown_while_it_lasts() -> None:
    """Guards the operator of a restart: the page says so while streams still run."""
    with running(World(backend=SLOW)) as server:
        assert status(server) == "ok"
        body = {"prompt": "a", "max_tokens": 3000, "stream": True}
        with server.client() as client, client.stream("POST", "/v1/completions", json=body) as it:
            lines = it.iter_lines()
            next(lines)
            server.service.drain()
            assert status(server) == "draining"
            assert server.get("/page/state").json()["stats"]["active_slots"] == 1


def test_a_backend_that_is_stuck_lost_and_back_is_shown_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the page against an idea of its own of what is stuck, and against hiding a loss."""
    backends: list[Fragile] = []

    def wrap(backend: Any) -> Fragile:  # Any: a backend
        backends.append(Fragile(backend))
        return backends[0]

    monkeypatch.setattr(limits, "STALL_S_MAX", 0.2)
    with running(World(wrap=wrap)) as server:
        fragile = backends[0]
        fragile.may_run.clear()
        caller = threading.Thread(target=server.complete, daemon=True)
        caller.start()
        try:
            wait_until(lambda: status(server) == "stalled", "nobody saw that it is stuck")
            fragile.falls = True
            fragile.may_run.set()
            wait_until(lambda: status(server) == "restarting", "nobody saw that it fell")
        finally:
            fragile.may_run.set()
            fragile.may_return.set()
            caller.join(WAIT_S)
        wait_until(lambda: status(server) == "ok", "it did not come back")
        assert server.get("/page/state").json()["stats"]["backend_failure_count"] == 1
