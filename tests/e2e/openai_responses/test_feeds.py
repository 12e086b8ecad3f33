"""Readers of stored responses over a socket: what they hold together, and where a long end is
made."""

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from jitney.server import limits as server_limits
from jitney.server.openai_responses import limits
from tests.e2e.openai_responses.response_client import PATH, ask, events_of, replayed
from tests.e2e.openai_responses.test_store_thread import calls_seen
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import Running, World, wait_until

SCORED: dict[str, Any] = {
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 20,
    "max_output_tokens": 200,
    "ignore_eos": True,
}


def gauges(server: Running) -> dict[str, float]:
    """What the streams of stored responses hold, and how many wait."""
    lines = (line.split() for line in server.get("/metrics").text.splitlines())
    name = "jitney:responses_streams_"
    return {
        each[0].removeprefix(name): float(each[1]) for each in lines if each[0].startswith(name)
    }


def test_slow_readers_hold_no_more_than_the_limit(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 60: readers that take nothing keep others of their key waiting, and those get all
    when the first have left."""
    monkeypatch.setattr(limits, "FEEDS_KEY_BYTES", 200_000)
    monkeypatch.setattr(limits, "FEED_TURN_S", 0.05)
    server = start(World(jobs_dir=tmp_path / "jobs", unsent_bytes_max=4096))
    response_id = ask(server, **SCORED).json()["id"]
    path = f"{PATH}/{response_id}?stream=true"
    whole = replayed(server, response_id)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(server.client(limits=httpx.Limits()))
        for _ in range(3):
            stack.enter_context(client.stream("GET", path))
        wait_until(lambda: gauges(server)["waiting"] == 2, "nobody waits")
        assert gauges(server)["bytes"] > 0
        # What is small needs no room.
        assert replayed(server, ask(server).json()["id"])
    assert replayed(server, response_id) == whole
    wait_until(lambda: gauges(server) == {"bytes": 0, "waiting": 0}, "room was not given back")


def test_a_long_end_is_not_made_on_the_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards all other streams: the last events have all logprobs four times."""
    monkeypatch.setattr(server_limits, "INLINE_VALUES_MAX", 100)
    with calls_seen(server) as called:
        events = events_of(ask(server, stream=True, store=False, **SCORED).text)
    assert len(events[-1]["response"]["output"][0]["content"][0]["logprobs"]) == 200
    assert "events" in called.on_loop, "nothing was noted"
    assert "closing" not in called.on_loop


def test_a_whole_answer_makes_no_events(server: Running) -> None:
    """Guards the processor: nobody reads them."""
    with calls_seen(server) as called:
        assert ask(server, store=False).status_code == 200
    assert "whole" in called.on_loop, "nothing was noted"
    assert not {"_delta", "_event", "_written", "_write"} & called.on_loop
