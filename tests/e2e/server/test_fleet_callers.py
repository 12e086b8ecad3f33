"""Callers of a server over a fleet, without Ray: what one does is no trouble to others."""

import json
import logging
from contextlib import ExitStack

import httpx
import pytest

from jitney.core.request import RequestId
from tests.e2e.page.fleet_server import SETTINGS, WAIT_S, fleet_server
from tests.e2e.server.harness import wait_until

LONG = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def test_a_caller_that_leaves_before_its_first_token_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards the log: anyone could fill it with tracebacks, by leaving while they wait."""
    with fleet_server(1) as server, ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=WAIT_S))
        for _ in range(SETTINGS.max_num_seqs):
            stack.enter_context(client.stream("POST", "/v1/completions", json=LONG))
        stats = server.cluster.fleet.stats
        with client.stream("POST", "/v1/completions", json=LONG) as waiting:
            assert waiting.status_code == 200
            assert "x-jitney-queue-ms" not in waiting.headers, "it has no slot"
        wait_until(lambda: stats().cancelled_requests == 1, "nobody saw that it left")
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_a_stream_that_is_cut_in_the_middle_says_so() -> None:
    """Guards callers: half an answer would look like a whole one."""
    with fleet_server(1) as server, httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        fleet = server.cluster.fleet
        with client.stream("POST", "/v1/completions", json=LONG) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            (request_id,) = fleet._live
            fleet.cancel(RequestId(request_id))
            rest = [line for line in lines if line]
    assert json.loads(first.removeprefix("data: "))["choices"]
    assert "data: [DONE]" not in rest
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "cancelled"


def test_a_server_without_a_replica_is_not_ready() -> None:
    """Guards callers behind a balancer: it went on sending to a server where nobody would answer.
    One that has just started has nobody either."""
    with fleet_server(1) as server, httpx.Client(base_url=server.url, timeout=WAIT_S) as client:

        def state() -> tuple[int, int, str]:
            codes = [client.get(path).status_code for path in ("/health", "/ready")]
            lines = client.get("/metrics").text.splitlines()
            (ready,) = (each.split()[1] for each in lines if each.startswith("jitney:ready "))
            return codes[0], codes[1], ready

        for name in ("r1", "r2"):
            wait_until(lambda: state() == (503, 503, "0.0"), "it is ready without a replica")
            assert "No replica is ready" in client.get("/ready").json()["reason"]
            server.ask("a", 2)
            assert state() == (200, 200, "1.0")
            server.kill(name)
            server.add()
