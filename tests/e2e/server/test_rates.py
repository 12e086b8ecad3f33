"""Rates of keys, refusals and bounds as a whole server has them, and what metrics tell of them."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from jitney.config import Key
from jitney.server import limits
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import Running, World, check_error, wait_until
from tests.e2e.server.pace import SLOW, StillClock

SECRET = "a-secret-of-the-tests"
HEADER = {"authorization": f"Bearer {SECRET}"}


def rated(start: Start, **rates: float) -> Running:
    """A server whose fake model is slow, with one key, which has these rates."""
    keys = (Key(name="a", secret=SECRET, **rates),)  # type: ignore[arg-type]
    return start(World(backend=SLOW, sequences=32, keys=keys, clock=StillClock()))


def ask(server: Running, prompt: Any = "a", **fields: Any) -> httpx.Response:
    return server.post("/v1/completions", {"prompt": prompt, **fields}, **HEADER)


def sample(server: Running, name: str) -> float:
    """The value of a metric; 0 when nothing was counted under it yet."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", server.get("/metrics", **HEADER).text, re.M)
    return 0.0 if found is None else float(found[1])


def test_a_crowd_cannot_overrun_the_token_rate_of_its_key(start: Start) -> None:
    """Guards the rate: what runs has its tokens set aside, so that its size is known in time."""
    server = rated(start, tokens_per_minute=100)
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: ask(server, max_tokens=49), range(20)))
    statuses = [reply.status_code for reply in replies]
    assert statuses.count(200) == 2
    assert statuses.count(429) == 18
    refused = replies[statuses.index(429)]
    assert "tokens per minute" in check_error(refused, 429)["message"]
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert sample(server, 'jitney:http_refusals_total{error="rate_limit_exceeded"}') == 18


def test_what_was_set_aside_and_not_used_is_given_back(start: Start) -> None:
    """Guards callers who ask for much and use little: one of these is not worth two."""
    server = rated(start, tokens_per_minute=6000)
    for _ in range(3):
        body = {"prompt": "a", "max_tokens": 3900, "stream": True}
        with server.send(body, f"Authorization: Bearer {SECRET}") as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        wait_until(server.is_idle, "the request went on for nobody")
    assert ask(server, max_tokens=4).status_code == 200


def test_the_prompts_of_a_call_are_let_in_together_or_not_at_all(start: Start) -> None:
    """Guards the engine: no part of a call runs that is refused for its size."""
    server = rated(start, tokens_per_minute=100)
    assert ask(server, max_tokens=20).status_code == 200
    check_error(ask(server, ["a"] * 8, max_tokens=20), 429)
    assert server.stats.total_requests == 1
    assert "1000 at most" in check_error(ask(server, max_tokens=1000), 400, "max_tokens")["message"]
    assert "max_tokens" in check_error(ask(server, "a", max_tokens=500, n=2), 400)["message"]
    assert server.stats.total_requests == 1


@pytest.mark.parametrize("streams", [False, True])
def test_metrics_count_every_refusal_by_its_reason(start: Start, streams: bool) -> None:
    """Guards operators: the HTTP side refuses too, and its bounds are in force as well."""
    server = rated(start, tokens_per_minute=1e6)
    check_error(ask(server, max_tokens=-2, stream=streams), 400)
    check_error(ask(server, "a" * 5000, stream=streams), 400)
    server.get("/v1/models")
    for error in ("invalid_value", "ContextLengthExceeded", "missing_api_key"):
        assert sample(server, f'jitney:http_refusals_total{{error="{error}"}}') == 1, error
    service, settings = server.service, server.service.settings
    for name, value in (
        ("body_bytes_max", service.body_limit),
        ("bodies_bytes_max", service.admission.bodies_bytes_max),
        ("shutdown_s", settings.shutdown_timeout),
        ("stall_s_max", limits.STALL_S_MAX),
        ("send_s_max", limits.SEND_S_MAX),
        ("ping_s", limits.PING_S),
        ("sequences_max", service.engine.settings.max_num_seqs),
    ):
        assert sample(server, f'jitney:limit{{limit="{name}"}}') == value, name
    assert sample(server, "jitney:ready") == 1
    server.service.drain()
    assert sample(server, "jitney:ready") == 0
    check_error(ask(server, stream=streams), 503)
    assert sample(server, 'jitney:http_refusals_total{error="Draining"}') == 1


def test_completions_are_what_the_rate_of_requests_counts(start: Start) -> None:
    """Guards the rate: prompts times n are as many requests, in however few calls they come."""
    server = rated(start, requests_per_minute=20)
    assert ask(server, ["a"] * 4, n=4, max_tokens=1).status_code == 200
    refused = ask(server, "a", n=8, max_tokens=1)
    assert "requests per minute" in check_error(refused, 429)["message"]
    assert int(refused.headers["retry-after"]) >= 1
    # The refused one counts as one.
    assert ask(server, "a", n=3, max_tokens=1).status_code == 200
    check_error(ask(server, "a", max_tokens=1), 429)
    never = ask(rated(start, requests_per_minute=1), n=16, max_tokens=1)
    assert "at most" in check_error(never, 400, "n")["message"]


def test_one_key_does_not_fill_the_queue_or_the_places(start: Start) -> None:
    """Guards other keys: 64 sequences may wait here, of which one key may have half."""
    keys = (Key(name="a", secret=SECRET), Key(name="b", secret=SECRET + "b"))
    server = start(World(backend=SLOW, sequences=4, keys=keys))
    too_many = check_error(ask(server, ["a"] * 4, n=16, max_tokens=4000), 400, "prompt")
    assert "for this key; send them in several calls" in too_many["message"]
    body = {"prompt": "a", "n": 16, "max_tokens": 4000}
    flood = [server.send(body, f"Authorization: Bearer {SECRET}") for _ in range(4)]
    wait_until(lambda: server.stats.active_slots == 3, "none has started")
    wait_until(lambda: server.stats.refused_requests >= 1, "all were taken")
    refused = ask(server, "a", n=16, max_tokens=4000)
    assert "its share of the queue is 32" in check_error(refused, 429)["message"]
    assert int(refused.headers["retry-after"]) >= 1
    reply = server.post(
        "/v1/completions", {"prompt": "b", "max_tokens": 4}, authorization=f"Bearer {SECRET}b"
    )
    assert reply.status_code == 200
    wait_until(lambda: server.stats.active_slots == 3, "the flood runs on beside it")
    for connection in flood:
        connection.close()
    wait_until(server.is_idle, "something went on for nobody")
