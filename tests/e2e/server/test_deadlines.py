"""`deadline_ms` while our own side is stuck: the caller is told in time all the same."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from jitney.core.backend import Segment
from jitney.core.batch import Batch, Outcome
from jitney.server import limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import WAIT_S, Running, World, check_error, events, wait_until

LONG = {"prompt": "a", "max_tokens": 3000}


class Stuck:
    """A backend that neither tokenises nor computes while it may not, or after some batches."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.batches_left: int | None = None
        self.may_encode = threading.Event()
        self.may_execute = threading.Event()
        self.may_encode.set()
        self.may_execute.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        assert self.may_encode.wait(2 * WAIT_S), "nobody let it go"
        tokens: list[int] = self._backend.encode(texts)
        return tokens

    def execute(self, batch: Batch) -> Outcome:
        if self.batches_left == 0:
            self.may_execute.clear()
        if self.batches_left is not None:
            self.batches_left -= 1
        assert self.may_execute.wait(2 * WAIT_S), "nobody let it go"
        outcome: Outcome = self._backend.execute(batch)
        return outcome


Made = tuple[Running, Stuck]


@pytest.fixture
def made(start: Start) -> Made:
    """A server, and its backend."""
    backends: list[Stuck] = []

    def wrap(backend: Any) -> Stuck:
        backends.append(Stuck(backend))
        return backends[-1]

    return start(World(wrap=wrap)), backends[0]


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"prompt": ["a", "b"]}])
def test_a_batch_that_does_not_return_keeps_nobody(
    made: Made, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Guards the promise: a deadline holds though the engine cannot look at it."""
    # A stream that began before its deadline would have an event instead of a status.
    monkeypatch.setattr(limits, "HEADERS_WAIT_S", WAIT_S)
    server, backend = made
    backend.may_execute.clear()
    try:
        reply = server.post("/v1/completions", {**LONG, "deadline_ms": 200, **fields})
        assert check_error(reply, 408)["code"] == "deadline_exceeded"
        wait_until(lambda: server.load == 0, "its place is kept")
    finally:
        backend.may_execute.set()
    server.check_idle()
    assert server.complete().status_code == 200


def test_a_stream_that_stands_still_gets_one_error(made: Made) -> None:
    """Guards what was sent already: it keeps its end, which is one event."""
    server, backend = made
    # A busy machine may come to the first token only after a short one.
    for deadline_ms in (1500, 10_000, 50_000):
        backend.batches_left = 5
        try:
            reply = server.complete(max_tokens=3000, deadline_ms=deadline_ms, stream=True)
        finally:
            backend.batches_left = None
            backend.may_execute.set()
        server.check_idle()
        if reply.status_code == 200:
            break
    told = events(reply.text)
    assert told[-1]["error"]["code"] == "deadline_exceeded"
    assert "".join(each["choices"][0]["text"] for each in told[:-1])


def test_a_tokenizer_that_does_not_return_keeps_nobody(made: Made) -> None:
    """Guards the door: time that passes there is the caller's time."""
    server, backend = made
    backend.may_encode.clear()
    try:
        reply = server.post("/v1/completions", {**LONG, "deadline_ms": 100})
        error = check_error(reply, 408)
        assert error["code"] == "deadline_exceeded"
        assert "deadline_ms" in error["message"]
    finally:
        backend.may_encode.set()
    server.check_idle()
    assert server.service.engine.stats().completed_requests == 0
