"""Answers of servers as they come: whole, in pieces, wrong, and without counts."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable
from typing import Any  # Any: values of a target

import httpx
import pytest

from jitney.errors import ConfigError
from jitney_lab.bench.http_target import COMPLETIONS, HttpTarget, check_address
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job

JOB = Job(number=0, prompt_count=3, completion_count=4)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


TEXT = event({"choices": [{"text": "a"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
DONE = b"data: [DONE]\n\n"


def ask(pieces: list[bytes], status: int = 200, **values: Any) -> RequestTimes:
    """A request that is answered with these pieces. The values are those of the target."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return answered(lambda request: httpx.Response(status, content=body()), **values)


def answered(reply: Callable[[httpx.Request], httpx.Response], **values: Any) -> RequestTimes:
    target = HttpTarget(**{"base_url": "http://x/", "model": "m", "seed": 1, **values})

    async def run() -> RequestTimes:
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
        ([TEXT, b'data: {"error": ' + b"[" * 10_000 + b"\n\n"], 200, "RecursionError"),
        ([TEXT, b'data: {"choi'], 200, "DecodeError"),
        ([DONE], 200, "no text"),
        ([], 200, "no text"),
    ],
)
def test_a_failure_is_kept_with_its_reason(pieces: list[bytes], status: int, words: str) -> None:
    times = ask(pieces, status)
    assert words in str(times.error)


@pytest.mark.parametrize(
    "end", [DONE, b"data: [DONE]", event({"choices": [{"text": "", "finish_reason": "length"}]})]
)
def test_one_sign_of_the_end_is_enough(end: bytes) -> None:
    """Guards servers that leave out one of the two, or the last line end."""
    assert ask([TEXT, TEXT, end]).error is None


@pytest.mark.parametrize("reason", [None, ""])
def test_an_answer_without_an_end_broke_off(reason: str | None) -> None:
    """Guards the count of successes: a server that dies sends only the beginning."""
    times = ask([TEXT, event({"choices": [{"text": "b", "finish_reason": reason}]}), USAGE])
    assert "the answer broke off" in str(times.error)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("completion_tokens", count) for count in (-7, 5, 10**15)),
        *(("prompt_tokens", count) for count in (-1, 10**15)),
    ],
)
def test_a_count_that_cannot_be_right_fails_the_request(name: str, count: int) -> None:
    """Guards throughput: it was negative, or that of no machine."""
    times = ask([TEXT, event({"usage": {name: count}}), DONE])
    assert f"{name} {count:,}; expected 0 to " in str(times.error)
    assert times.completion_count == 0


def test_more_tokens_than_asked_for_count_if_their_text_came() -> None:
    """Guards servers that do not keep to max_tokens."""
    long = event({"choices": [{"text": "a" * 9}]})
    usage = event({"usage": {"completion_tokens": 9}})
    assert ask([long, usage, DONE]).completion_count == 9


def test_fields_may_be_null() -> None:
    empty = event({"error": None, "choices": None, "usage": None})
    chat = event({"choices": [{"delta": None}, {"delta": {"content": None}, "text": None}]})
    counts = event({"usage": {"prompt_tokens": None, "completion_tokens": None}})
    times = ask([empty, chat, TEXT, counts, DONE])
    assert times.error is None
    assert (times.prompt_count, times.completion_count) == (3, 1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_our_own_limit_of_files_is_not_the_servers_fault(number: int) -> None:
    """Guards the count of failures: the library hides the reason two errors deep."""

    def refuse(request: httpx.Request) -> httpx.Response:
        refused = OSError(errno.ECONNREFUSED, "refused")
        group = ExceptionGroup("all failed", [refused, OSError(number, "Too many open files")])
        try:
            raise OSError("All connection attempts failed") from group
        except OSError as error:
            raise httpx.ConnectError("All connection attempts failed") from error

    times = answered(refuse)
    assert "raise `ulimit -n` or lower --max-concurrency" in str(times.error)
    assert not times.is_sent


@pytest.mark.parametrize(
    ("status", "body", "hints"),
    [
        (400, b"Unrecognized request argument: ignore_eos", True),
        (422, b'{"detail": "' + b"x" * 1000 + b'ignore_eos"}', True),
        (400, b"the prompt is too long", False),
        (500, b"ignore_eos", False),
    ],
)
def test_a_server_that_does_not_know_our_field_gets_a_hint(
    status: int, body: bytes, *, hints: bool
) -> None:
    """Guards those who measure a server of another make: the flag is not easy to guess."""
    error = ask([body], status).error
    assert error is not None
    assert ("--no-ignore-eos leaves the field ignore_eos out" in error) is hints
    assert len(error) < 300
    assert "--no-ignore-eos" not in str(ask([body], status, ignores_eos=False).error)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_as_that_of_openais_clients(end: str) -> None:
    assert HttpTarget(base_url="http://x" + end, model="m", seed=1).url == "http://x" + COMPLETIONS
    other = HttpTarget(base_url="http://x/v1", endpoint="/completions", model="m", seed=1)
    assert other.url == "http://x/v1/completions"


def test_a_refused_call_without_a_key_gets_a_hint() -> None:
    assert ask([b"no"], 401).error == "status 401: no; --api-key gives the server a key"
    assert ask([b"no"], 401, api_key="sk-123").error == "status 401: no"


def test_a_key_with_control_characters_in_it_is_not_shown() -> None:
    times = ask([b"no such key: sk-\x1b123"], 401, api_key="sk-123")
    assert times.error == "status 401: no such key: [key]"


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


def test_bodies_of_both_kinds() -> None:
    plain = HttpTarget(base_url="http://x", model="m", seed=1, extra_body={"cache_prompt": False})
    body = plain.body(JOB)
    assert isinstance(body["prompt"], str)
    assert (body["max_tokens"], body["ignore_eos"], body["cache_prompt"]) == (4, True, False)
    chat = HttpTarget(
        base_url="http://x", endpoint="/v1/chat/completions", model="m", seed=1, ignores_eos=False
    ).body(JOB)
    assert chat["messages"] == [{"role": "user", "content": body["prompt"]}]
    assert "ignore_eos" not in chat
