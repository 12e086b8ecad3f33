"""Clients that ask and do not read: cut in time, and nobody waits for them at the end."""

import contextlib
import logging
import socket
import threading
from dataclasses import replace

import pytest

from jitney.config import ServeSettings
from jitney.core import limits
from jitney.core.batch import Batch, Outcome
from jitney.engine.collector import READ_TOO_SLOWLY
from jitney.server import lifecycle
from jitney.server import limits as server_limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    MODEL,
    Running,
    World,
    read_all,
    request_bytes,
    running,
    wait_until,
)
from tests.e2e.server.pace import BackendFront

LARGE = request_bytes(
    "/v1/completions",
    {"prompt": "a", "max_tokens": 200, "logprobs": 10, "ignore_eos": True},
    close=False,
)
VERSION = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


NEVER_S = 3600.0


def world() -> World:
    """A server whose system holds little for those who do not read."""
    settings = ServeSettings(served_model_name=(MODEL,), shutdown_timeout=0.1)
    return World(settings=settings, unsent_bytes_max=16_384)


class Tiring(BackendFront):
    """A backend that is quick for a while, so that much is unread, and then waits for its readers:
    a machine that is busy elsewhere may look at them late."""

    quick_count = 1000

    count = 0

    def execute(self, batch: Batch) -> Outcome:
        self.count += 1
        if self.count > self.quick_count:
            threading.Event().wait(0.05)
        return super().execute(batch)


def is_cut(connection: socket.socket) -> bool:
    """Whether the other side is gone, told by a write."""
    try:
        connection.send(b"G")
    except ConnectionError:
        return True
    return False


def is_stuck(server: Running) -> bool:
    """Whether an answer is made and not sent, though the event loop has its turns."""
    looks = 20
    for _ in range(looks):
        server.get("/health")
        if server.load != 1 or server.stats.live_requests:
            return False
    return True


@pytest.mark.parametrize("count", [1, 20], ids=["the last answer", "many answers in a row"])
def test_answers_that_nobody_takes_are_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Guards places and memory: an answer that is no stream has a limit too, and so has the rest
    of one that is complete."""
    monkeypatch.setattr(server_limits, "SEND_S_MAX", 0.5)
    server = start(world())
    with server.silent(LARGE * count) as connection:
        wait_until(lambda: is_cut(connection), "it was kept")
    server.check_idle()


def test_a_stream_that_nobody_reads_ends_before_it_holds_much(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards memory: logprobs of a stream may come to 100 MB until its connection is cut. Whoever
    comes back in time is told why it ended."""
    monkeypatch.setattr(limits, "UNREAD_S_MAX", 0.0)
    monkeypatch.setattr(server_limits, "SEND_S_MAX", NEVER_S)
    server = start(replace(world(), wrap=Tiring))
    body = {"prompt": "a", "max_tokens": 4000, "logprobs": 5, "ignore_eos": True, "stream": True}
    with server.silent(request_bytes("/v1/completions", body)) as connection:
        engine = server.service.engine
        wait_until(lambda: engine.stats().cancelled_requests == 1, "it goes on")
        assert engine.stats().completion_tokens < 2500
        told = read_all(connection)
    assert READ_TOO_SLOWLY.encode() in told
    assert b"[DONE]" not in told
    server.check_idle()


@pytest.mark.parametrize(
    ("last_s", "waits_for"),
    [(3600.0, "nothing"), (3600.0, "the end of the drain"), (1.0, "the cut")],
)
def test_nobody_waits_for_them_at_the_end(
    monkeypatch: pytest.MonkeyPatch, last_s: float, waits_for: str
) -> None:
    """Guards the end: it comes at a second signal, though a client would let its answers be written
    for ever and everything else would wait for it; and where nobody hurries, when their time is
    over."""
    monkeypatch.setattr(lifecycle, "LAST_RESPONSES_S_MAX", last_s)
    monkeypatch.setattr(server_limits, "SEND_S_MAX", NEVER_S)
    # The server ends before its client leaves.
    with contextlib.ExitStack() as clients, running(world()) as server:
        connection = clients.enter_context(server.silent(LARGE * 20))
        wait_until(lambda: is_stuck(server), "its answers were taken")
        server.lifecycle.stop()
        if waits_for == "the end of the drain":
            wait_until(lambda: server.service.is_stopping, "the drain has no end")
        elif waits_for == "the cut":
            wait_until(lambda: is_cut(connection), "it was kept")
    assert not server.is_listening()


def test_another_protocol_is_answered_in_this_one(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the operator's log: no client can make it tell them to install something."""
    server = start(world())
    upgrade = VERSION.replace(b"close", b"close, upgrade").replace(
        b"Host", b"Upgrade: websocket\r\nHost"
    )
    assert server.raw(upgrade).startswith(b"HTTP/1.1 200 ")
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_request_behind_a_stream_is_answered_after_it(start: Start) -> None:
    """Guards pipelining and kept connections: a stream leaves its connection in order, though its
    pieces go past the layers that keep count."""
    server = start(world())
    body = {"prompt": "a", "max_tokens": 8, "stream": True}
    first = request_bytes("/v1/completions", body, close=False)
    with server.connect() as connection:
        connection.sendall(first + first + VERSION)
        told = read_all(connection)
    assert told.count(b"HTTP/1.1 200 ") == 3
    assert told.count(b"data: [DONE]") == 2
    assert told.rindex(b"data: [DONE]") < told.index(b'"version"')
