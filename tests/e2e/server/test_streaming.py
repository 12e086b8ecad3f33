"""Streams: what they add up to, how they begin and end, and what they say while they wait."""

import asyncio
import re
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from jitney.core.batch import Batch, Outcome
from jitney.engine.answer import Answer, Delta
from jitney.errors import BackendCrashed
from jitney.server import limits
from jitney.server.openai.replies import Reply
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    MODEL,
    WAIT_S,
    Running,
    World,
    check_error,
    events,
    lines_of,
    request_bytes,
    wait_until,
)
from tests.e2e.server.pace import SLOW, BackendFront, Pace


def joined_chat(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """What the chunks of a chat add up to, by choice."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            made = choices.setdefault(
                choice["index"], {"content": "", "logprobs": [], "finish_reason": None, "roles": 0}
            )
            made["content"] += choice["delta"].get("content") or ""
            made["roles"] += "role" in choice["delta"]
            if choice["logprobs"] is not None:
                made["logprobs"] += choice["logprobs"]["content"]
            if choice["finish_reason"] is not None:
                assert made["finish_reason"] is None, "two ends"
                made["finish_reason"] = choice["finish_reason"]
    return choices


def test_only_a_line_feed_ends_a_line(server: Running) -> None:
    """Guards readers of events: some libraries also take other characters for the end of a line."""
    text = "a\u0085b\u2028c"
    fields = {"structured_outputs": {"choice": [text]}, "stream": True}
    body = {"prompt": "a", "max_tokens": 64, **fields}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        *chunks, last = events("\n".join(lines_of(response)) + "\n\n")
    assert last == "[DONE]"
    assert "".join(each["choices"][0]["text"] for each in chunks) == text


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"seed": 7},
        {"seed": 3, "n": 3},
        {"seed": 7, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0, "stop": ["e", "\x02"]},
        {"seed": 5, "structured_outputs": {"regex": "[a-z ]{5,40}"}},
        {"seed": 9, "max_tokens": 1},
    ],
)
def test_a_streamed_chat_adds_up_to_the_whole(server: Running, fields: dict[str, Any]) -> None:
    """Guards invariant 5 through HTTP: nothing is lost, doubled or reordered on the way."""
    asked = {"max_tokens": 40, **fields}
    whole = server.chat("tell me", **asked).json()
    text = server.chat("tell me", stream=True, stream_options={"include_usage": True}, **asked).text
    *chunks, last, done = events(text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    made = joined_chat(chunks)
    assert len(made) == len(whole["choices"])
    for choice in whole["choices"]:
        stream = made[choice["index"]]
        assert stream["content"] == choice["message"]["content"]
        assert stream["finish_reason"] == choice["finish_reason"]
        assert stream["roles"] == 1
        if choice["logprobs"] is not None:
            assert stream["logprobs"] == choice["logprobs"]["content"]
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("has_last", [False, True])
def test_every_chunk_tells_what_was_used_so_far(server: Running, has_last: bool) -> None:
    """Guards tools that measure as they read: counts only grow, and end at the usage of the call,
    whose tokens here all have text."""
    body = {"prompt": ["a", "bc"], "n": 2, "seed": 1, "max_tokens": 6, "ignore_eos": True}
    options = {"continuous_usage_stats": True, "include_usage": has_last}
    asked = {**body, "stream": True, "stream_options": options}
    *chunks, done = events(server.post("/v1/completions", asked).text)
    assert done == "[DONE]"
    usage = server.post("/v1/completions", body).json()["usage"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == usage["completion_tokens"] == 24
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {usage["prompt_tokens"]}
    for chunk in chunks:
        total = chunk["usage"]["prompt_tokens"] + chunk["usage"]["completion_tokens"]
        assert chunk["usage"]["total_tokens"] == total
    assert (chunks[-1]["choices"] == []) is has_last


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "a", "seed": 1},
        {"prompt": ["a", "b", "c"], "seed": 1, "n": 2},
        {"prompt": [[5, 6], [7]], "temperature": 0},
        {"prompt": "once", "echo": True, "temperature": 0},
        {"prompt": ["a", "b"], "logprobs": 2, "seed": 4},
    ],
)
def test_streamed_completions_add_up_to_the_whole(server: Running, fields: dict[str, Any]) -> None:
    """Guards several prompts in one stream: each choice gets its own text and no other."""
    body = {"max_tokens": 30, **fields}
    whole = server.post("/v1/completions", body).json()
    *chunks, done = events(server.post("/v1/completions", {**body, "stream": True}).text)
    assert done == "[DONE]"
    for choice in whole["choices"]:
        firsts = [each["choices"][0] for each in chunks]
        mine = [each for each in firsts if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in mine) == choice["text"]
        ends = [each["finish_reason"] for each in mine if each["finish_reason"]]
        assert ends == [choice["finish_reason"]]
        if choice["logprobs"] is not None:
            for name, values in choice["logprobs"].items():
                assert [value for each in mine for value in each["logprobs"][name]] == values
    indices = [choice["index"] for choice in whole["choices"]]
    assert indices == list(range(len(indices)))


def test_a_stream_to_an_old_client_has_no_chunks(server: Running) -> None:
    """Guards against chunk sizes in the text of HTTP/1.0, which knows no chunks."""
    asked = {"model": MODEL, "prompt": "tell me", "seed": 4, "max_tokens": 12, "stream": True}
    modern = request_bytes("/v1/completions", asked)
    reply = server.raw(modern.replace(b" HTTP/1.1", b" HTTP/1.0", 1))
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    *chunks, done = events(body.decode())
    assert done == "[DONE]"
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == server.complete("tell me", seed=4, max_tokens=12).json()["choices"][0]["text"]


def test_choices_are_in_the_order_of_prompts(server: Running) -> None:
    """Guards evaluation tools, which take answers by place."""
    alone = [server.complete(each, temperature=0).json()["choices"][0]["text"] for each in "abc"]
    together = server.complete(["a", "b", "c"], temperature=0).json()["choices"]
    assert [choice["text"] for choice in together] == alone
    assert [choice["index"] for choice in together] == [0, 1, 2]


def test_an_echo_brings_the_logprobs_of_the_prompt(server: Running) -> None:
    """Guards evaluation by logprobs: a value for each prompt token but the first."""
    choice = server.complete("hello", echo=True, logprobs=1, max_tokens=1).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:5] == list("hello")
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    assert len(logprobs["tokens"]) == 6
    error = server.complete("hello", echo=True, logprobs=1, stream=True)
    check_error(error, 400, "echo")


class Beginning(BackendFront):
    """A backend whose model begins every text with a token."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.vocabulary = replace(backend.vocabulary, adds_bos=True)


def test_a_token_that_the_server_adds_takes_no_place_in_the_text(start: Start) -> None:
    """Guards evaluation by offsets: they count the text that was sent."""
    server = start(World(wrap=Beginning))
    asked = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    choice = server.complete("hello", **asked).json()["choices"][0]
    assert choice["text"].startswith("hello")
    assert choice["logprobs"]["tokens"][:2] == ["<|bos|>", "h"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 3, 4, 5]
    choice = server.complete("<|bos|>hi", **asked).json()["choices"][0]
    assert choice["text"].startswith("<|bos|>hi")
    assert choice["logprobs"]["text_offset"] == [0, 7, 8, 9]


def test_a_waiting_stream_is_pinged_and_told_its_place(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards proxies and people: a stream that waits in the queue is not silent."""
    monkeypatch.setattr(limits, "HEADERS_WAIT_S", 0.05)
    monkeypatch.setattr(limits, "PING_S", 0.1)
    pace = Pace()
    server = start(World(wrap=pace.wrap, sequences=1))
    first = threading.Thread(target=server.complete, args=("a",), kwargs={"max_tokens": 1000})
    first.start()
    wait_until(lambda: server.stats.active_slots == 1, "it did not start")
    body = {"prompt": "b", "stream": True, "max_tokens": 2}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["x-jitney-queue-position"] == "0"
        lines = lines_of(response)
        assert next(lines) == ": ping"
        pace.may_hurry.set()
        *_, last = events("\n".join(lines).lstrip() + "\n\n")
    first.join(WAIT_S)
    assert last == "[DONE]"


class Faulty(BackendFront):
    """A backend that crashes and cannot be reset, once told so."""

    is_broken = False

    def execute(self, batch: Batch) -> Outcome:
        if self.is_broken:
            raise BackendCrashed("a crash in /some/secret/file.gguf at 0xdeadbeef.")
        return super().execute(batch)

    def reset(self) -> None:
        if self.is_broken:
            raise BackendCrashed("no more of /some/secret/file.gguf.")
        self.backend.reset()


async def said_at_the_end(server: Running, body: dict[str, Any]) -> str:
    """What a server says whose engine has stopped, asked without a socket: it listens no more."""
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://inside") as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "stopped")
        check_error(await client.post("/v1/completions", json=body), 503)
        state = (await client.get("/page/state?requests=true")).text
        shown = re.findall(r'"(cmpl-\w+)"', state)[0]
        paths = (f"/page/requests/{shown}", "/debug/trace")
        return state + "".join([(await client.get(path)).text for path in paths])


def test_a_failure_after_the_first_byte_is_one_event(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards clients of streams: one error event, no [DONE], no secret; then the server ends."""
    monkeypatch.setattr("jitney.core.limits.GIVE_UP_S", 0.0)
    monkeypatch.setattr("jitney.engine.in_flight.PAUSE_S", 0.01)
    server = start(World(backend=SLOW, wrap=Faulty))
    seen: list[str] = []
    body = {"prompt": "a", "max_tokens": 4000, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        for line in lines_of(response):
            seen.append(line)
            if len(seen) == 8:
                server.backend.is_broken = True
    *_, last = events("\n".join(seen) + "\n\n")
    assert last["error"]["code"] in ("engine_stopped", "backend_failed"), last
    assert "secret" not in "".join(seen)
    assert "[DONE]" not in "".join(seen)
    wait_until(lambda: not server.is_listening(), "a server that cannot serve stays")
    told = asyncio.run(said_at_the_end(server, body))
    assert "it failed" in told
    assert "secret" not in told
    assert "0xdeadbeef" not in told


def test_a_big_reply_is_written_out_beside_the_event_loop(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everyone's streams: they wait for nobody's megabytes of logprobs."""
    whole = Reply.whole
    threads: list[int] = []

    def noted(self: Reply, answers: list[Answer]) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return whole(self, answers)

    monkeypatch.setattr(Reply, "whole", noted)
    server = start(World())
    small = server.complete(temperature=0).json()
    big = server.complete("hello", temperature=0, max_tokens=2000, logprobs=20).json()
    echo = server.complete("a" * 3000, echo=True, logprobs=10, max_tokens=1).json()
    assert len(threads) == 3
    assert len({threads[0], threads[1]}) == 2
    assert threads[2] != threads[0]
    assert big["choices"][0]["text"].startswith(small["choices"][0]["text"])
    assert len(echo["choices"][0]["logprobs"]["tokens"]) == 3001


@pytest.mark.parametrize("count", [1, 3])
def test_our_own_mistake_in_a_stream_is_one_event(
    start: Start, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Guards clients against what nobody foresaw: an error they can read, not a cut connection."""
    chunks = Reply.chunks

    def failing(self: Reply, place: int, delta: Delta, count: int) -> list[dict[str, Any]]:
        if delta.finish_reason is not None:
            raise RuntimeError("a mistake in /some/secret/file.py")
        return chunks(self, place, delta, count)

    monkeypatch.setattr(Reply, "chunks", failing)
    server = start(World(backend=SLOW))
    response = server.complete(["a"] * count, stream=True, max_tokens=6)
    *_, last = events(response.text)
    assert last["error"]["code"] == "internal_error", last
    assert "reference" in last["error"]["message"]
    assert "secret" not in response.text
    assert "[DONE]" not in response.text
    server.check_idle()


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"prompt": ["b", "c"]}])
def test_a_deadline_in_the_queue_is_a_status(
    start: Start, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Guards clients of streams: what never began is no stream that began and failed."""
    # On a busy machine a stream may begin before anybody looks at its deadline.
    monkeypatch.setattr(limits, "HEADERS_WAIT_S", WAIT_S)
    server = start(World(backend=SLOW, sequences=1))
    running = server.send({"prompt": "a", "max_tokens": 4000})
    wait_until(lambda: server.stats.active_slots == 1, "it did not start")
    asked = {"prompt": "b", "deadline_ms": 150, "stream": True, "max_tokens": 4000, **fields}
    response = server.post("/v1/completions", asked)
    assert check_error(response, 408)["code"] == "deadline_exceeded"
    running.close()
    server.check_idle()


def until_its_deadline(server: Running, path: str, asked: dict[str, Any]) -> list[Any]:
    """What a stream says until its deadline, which is so late that some tokens come before it."""
    told: list[Any] = []
    for deadline_ms in (300, 2000, 10_000, 50_000):
        told = events(server.post(path, {**asked, "deadline_ms": deadline_ms}).text)
        if any(_text_of(chunk) for chunk in told[:-1]):
            break
    return told


def _text_of(chunk: Any) -> str:  # Any: JSON
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for choice in chunk["choices"]
    )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_chunk_has_an_end_that_clients_do_not_know(start: Start, path: str) -> None:
    """Guards clients that check what they read: a deadline is an error, not a finish reason."""
    server = start(World(backend=SLOW))
    given: dict[str, Any] = {"prompt": ["a", "b"]}
    if path.endswith("chat/completions"):
        given = {"messages": [{"role": "user", "content": "a"}], "n": 2}
    asked = {**given, "stream": True, "max_tokens": 4000}
    *chunks, last = until_its_deadline(server, path, asked)
    assert last["error"]["code"] == "deadline_exceeded"
    assert any(map(_text_of, chunks))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert {choice["finish_reason"] for choice in choices} == {None}


def test_many_streams_at_once_are_each_their_own(server: Running) -> None:
    """Guards isolation: what fifty streams say is what each says alone."""
    prompts = [f"prompt number {at}" for at in range(50)]

    async def ask(client: httpx.AsyncClient, prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "stream": True}
        response = await client.post("/v1/completions", json=body)
        *chunks, done = events(response.text)
        assert done == "[DONE]"
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    async def ask_all() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    together = asyncio.run(ask_all())
    for prompt, text in zip(prompts[::7], together[::7], strict=True):
        alone = server.complete(prompt, max_tokens=40, temperature=0).json()
        assert alone["choices"][0]["text"] == text
    server.check_idle()
