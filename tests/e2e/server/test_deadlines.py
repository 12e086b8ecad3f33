"""`deadline_ms` while our own side is stuck: the caller is told in time all the same."""

from typing import Any

import pytest

from jitney.server import limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import WAIT_S, Running, World, check_error, events, wait_until
from tests.e2e.server.pace import Gated

LONG = {"prompt": "a", "max_tokens": 3000}


@pytest.fixture
def gated(start: Start) -> Running:
    """A server whose backend waits when told so."""
    return start(World(wrap=Gated))


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"prompt": ["a", "b"]}])
def test_a_batch_that_does_not_return_keeps_nobody(
    gated: Running, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Guards the promise: a deadline holds though the engine cannot look at it."""
    # A stream that began before its deadline would have an event instead of a status.
    monkeypatch.setattr(limits, "HEADERS_WAIT_S", WAIT_S)
    server, backend = gated, gated.backend
    backend.may_run.clear()
    try:
        reply = server.post("/v1/completions", {**LONG, "deadline_ms": 200, **fields})
        assert check_error(reply, 408)["code"] == "deadline_exceeded"
        assert reply.headers["x-should-retry"] == "false"
        wait_until(lambda: server.load == 0, "its place is kept")
    finally:
        backend.may_run.set()
    server.check_idle()
    assert server.complete().status_code == 200


def test_a_stream_that_stands_still_gets_one_error(gated: Running) -> None:
    """Guards what was sent already: it keeps its end, which is one event."""
    server, backend = gated, gated.backend
    # A busy machine may come to the first token only after a short one.
    for deadline_ms in (1500, 10_000, 50_000):
        backend.batch_count_max = backend.batch_count + 5
        try:
            reply = server.complete(max_tokens=3000, deadline_ms=deadline_ms, stream=True)
        finally:
            backend.batch_count_max = None
            backend.may_run.set()
        server.check_idle()
        if reply.status_code == 200:
            break
    told = events(reply.text)
    assert told[-1]["error"]["code"] == "deadline_exceeded"
    assert "".join(each["choices"][0]["text"] for each in told[:-1])


def test_a_tokenizer_that_does_not_return_keeps_nobody(gated: Running) -> None:
    """Guards the door: time that passes there is the caller's time."""
    server, backend = gated, gated.backend
    backend.may_read.clear()
    try:
        reply = server.post("/v1/completions", {**LONG, "deadline_ms": 100})
        error = check_error(reply, 408)
        assert error["code"] == "deadline_exceeded"
        assert "deadline_ms" in error["message"]
    finally:
        backend.may_read.set()
    server.check_idle()
    assert server.stats.completed_requests == 0
