"""Answers of servers as they come: whole, in pieces, wrong, and without counts."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from jitney.bench.http_target import HttpTarget
from jitney.bench.timing import RequestTimes
from jitney.bench.workload import Job

JOB = Job(number=0, prompt_count=3, completion_count=2)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


TEXT = event({"choices": [{"text": "a"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
DONE = b"data: [DONE]\n\n"


def ask(pieces: list[bytes], status: int = 200) -> RequestTimes:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body())

    async def run() -> RequestTimes:
        target = HttpTarget(base_url="http://x/", model="m", seed=1)
        async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as client:
            return await target.ask(client, JOB)

    return asyncio.run(run())


def test_the_counts_of_the_server_hold() -> None:
    times = ask([TEXT, TEXT, USAGE, DONE])
    assert times.error is None
    assert (times.prompt_count, times.completion_count) == (9, 4)
    assert len(times.token_times) == 2


def test_events_may_come_in_any_pieces() -> None:
    whole = b": ping\n\n" + TEXT + event({"choices": [{"delta": {"content": "b"}}]}) + USAGE + DONE
    times = ask([whole[at : at + 3] for at in range(0, len(whole), 3)])
    assert times.error is None
    assert len(times.token_times) == 2


def test_without_counts_a_chunk_is_a_token() -> None:
    times = ask([TEXT, TEXT, TEXT, DONE])
    assert (times.prompt_count, times.completion_count) == (3, 3)


@pytest.mark.parametrize(
    ("pieces", "status", "words"),
    [
        ([b"no room"], 429, "status 429: no room"),
        ([event({"error": {"message": "gone"}})], 200, "gone"),
        ([b"data: {\n\n"], 200, "JSONDecodeError"),
        ([DONE], 200, "no text"),
        ([], 200, "no text"),
    ],
)
def test_a_failure_is_kept_with_its_reason(pieces: list[bytes], status: int, words: str) -> None:
    times = ask(pieces, status)
    assert times.error is not None
    assert words in times.error


def test_bodies_of_both_kinds() -> None:
    plain = HttpTarget(base_url="http://x", model="m", seed=1, extra_body={"cache_prompt": False})
    body = plain.body(JOB)
    assert isinstance(body["prompt"], str)
    assert (body["max_tokens"], body["ignore_eos"], body["cache_prompt"]) == (2, True, False)
    chat = HttpTarget(
        base_url="http://x", endpoint="/v1/chat/completions", model="m", seed=1, ignores_eos=False
    ).body(JOB)
    assert chat["messages"] == [{"role": "user", "content": body["prompt"]}]
    assert "ignore_eos" not in chat
