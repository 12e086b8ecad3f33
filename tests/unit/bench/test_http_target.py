"""Answers of servers as they come: whole, in pieces, wrong, and without counts."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from jitney.bench.http_target import HttpTarget, check_address, check_key
from jitney.bench.timing import RequestTimes
from jitney.bench.workload import Job
from jitney.errors import ConfigError

JOB = Job(number=0, prompt_count=3, completion_count=2)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


TEXT = event({"choices": [{"text": "a"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
DONE = b"data: [DONE]\n\n"


def ask(
    pieces: list[bytes],
    status: int = 200,
    headers: dict[str, str] | None = None,
    *,
    base_url: str = "http://x/",
    api_key: str | None = None,
) -> RequestTimes:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers=headers, content=body())

    async def run() -> RequestTimes:
        target = HttpTarget(base_url=base_url, model="m", seed=1, api_key=api_key)
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
        ([b"data: {\n\n"], 200, "DecodeError"),
        ([b"data: \xff\n\n"], 200, "DecodeError"),
        ([event([1])], 200, "Expected `object`"),
        ([event("text")], 200, "Expected `object`"),
        ([event({"choices": ["text"]})], 200, "choices"),
        ([b"data: " + b"a" * 2**19] * 3, 200, "above 1,048,576 bytes"),
        ([b"z" * 2**16] * 8, 500, "status 500: " + "z" * 200),
        ([DONE], 200, "no text"),
        ([], 200, "no text"),
    ],
)
def test_a_failure_is_kept_with_its_reason(pieces: list[bytes], status: int, words: str) -> None:
    times = ask(pieces, status)
    assert times.error is not None
    assert words in times.error


def test_fields_may_be_null() -> None:
    empty = event({"error": None, "choices": None, "usage": None})
    chat = event({"choices": [{"delta": None}, {"delta": {"content": None}, "text": None}]})
    counts = event({"usage": {"prompt_tokens": None, "completion_tokens": None}})
    times = ask([empty, chat, TEXT, counts, DONE])
    assert times.error is None
    assert (times.prompt_count, times.completion_count) == (3, 1)


def test_an_answer_may_be_compressed() -> None:
    packed = gzip.compress(TEXT + TEXT + USAGE + DONE)
    times = ask([packed[:20], packed[20:]], headers={"content-encoding": "gzip"})
    assert times.error is None
    assert len(times.token_times) == 2


def test_a_wrong_address_fails_the_request_and_not_the_run() -> None:
    times = ask([TEXT], base_url="http://x:port")
    assert times.error is not None
    assert "InvalidURL" in times.error


def test_a_key_that_the_server_repeats_is_not_shown() -> None:
    times = ask([b"no such key: sk-123"], 401, api_key="sk-123")
    assert times.error == "status 401: no such key: [key]"


@pytest.mark.parametrize("key", ["", "sk-123\n", "sk\x00-123", "sk-\u00e4123"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key") as caught:
        check_key(key)
    assert "123" not in str(caught.value)
    check_key("sk-123")
    check_key(None)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@x",
        "http:/me:secret@x",
        "me:secret@[x",
        "http://x?key=secret",
        "http://x#secret",
    ],
)
def test_a_secret_in_the_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url") as caught:
        check_address(url, "/v1/completions")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "ftp://x", "x:8000", "http://", "http://x:port"])
def test_an_address_without_a_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected an address"):
        check_address(url, "/v1/completions")


def test_a_path_begins_with_a_slash() -> None:
    check_address("http://x:8000/deep", "/v1/completions")
    with pytest.raises(ConfigError, match="--endpoint"):
        check_address("http://x", "v1/completions")


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
