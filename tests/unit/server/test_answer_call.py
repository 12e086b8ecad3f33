"""Tests of the floor below HTTP: bodies are answered, streamed and refused without a socket."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import ServeSettings
from jitney.core.request import Priority
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.request_factory import RequestFactory
from jitney.errors import ContextLengthExceeded, DeadlineExceeded, Draining
from jitney.server.admission.calls import Call
from jitney.server.admission.keys import Caller
from jitney.server.answer_call import Generation, answer, prepare
from jitney.server.openai.bodies import CompletionBody
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.check_body import check_fields
from jitney.server.service import Service
from jitney.text.chat_template import ChatTemplate

MODEL_LEN = 256
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 5}
PROMPT = {"prompt": ["a", "b"], "n": 2, "max_tokens": 8, "seed": 5}


@pytest.fixture
def service() -> Iterator[Service]:
    backend = FakeBackend(FakeSettings(eos_period=0))
    engine = Engine(backend, SchedulerSettings(model_len_max=MODEL_LEN))
    source = backend.vocabulary.chat_template
    assert source is not None
    template = ChatTemplate(source, backend.vocabulary, tokens_max=MODEL_LEN)
    factory = RequestFactory(backend, MODEL_LEN, lambda: 1)
    settings = ServeSettings(served_model_name=("tiny",))
    made = Service(engine, factory, template, settings)
    engine.start()
    yield made
    engine.close(0.0)
    made.worker_threads.close()
    made.bodies.close()


def call(**fields: Any) -> Call:
    made = Call("req-1", 0.0, **fields)
    made.caller = Caller()
    return made


def body(fields: dict[str, Any], **others: Any) -> ChatBody | CompletionBody:
    if "messages" in fields:
        return check_fields({**fields, **others}, ChatBody)
    return check_fields({**fields, **others}, CompletionBody)


async def streamed(generation: Generation) -> list[dict[str, Any]]:
    """All chunks of a stream."""
    with generation.running():
        return [chunk async for chunks in generation.chunks() for chunk in chunks]


@pytest.mark.parametrize("fields", [CHAT, PROMPT])
def test_a_stream_adds_up_to_the_whole_reply(service: Service, fields: dict[str, Any]) -> None:
    """Guards every protocol above: both ways to read a reply have the same texts."""

    async def run() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        whole = json.loads(await answer(service, body(fields), call()))
        generation = await prepare(service, body(fields, stream=True), call())
        return whole, await streamed(generation)

    whole, chunks = asyncio.run(run())
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            added = choice.get("text") or choice.get("delta", {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + added
    expected = {
        each["index"]: each["text"] if "text" in each else each["message"]["content"]
        for each in whole["choices"]
    }
    assert texts == expected
    assert all(expected.values())


def test_what_is_wrong_is_raised_as_an_error(service: Service) -> None:
    """Guards callers that are no HTTP: nothing is turned into a response here."""

    async def run() -> None:
        with pytest.raises(ContextLengthExceeded):
            await answer(service, body({"prompt": "x" * 2 * MODEL_LEN}), call())
        with pytest.raises(DeadlineExceeded):
            await answer(service, body(CHAT), call(due_at=service.clock.now() - 1.0))
        service.worker_threads.close()
        with pytest.raises(Draining):
            await answer(service, body(CHAT), call())

    asyncio.run(run())


def test_a_caller_who_gives_up_leaves_nothing_behind(service: Service) -> None:
    """Guards slots and threads: a cancelled task ends its requests, wherever they are."""

    async def run() -> None:
        task = asyncio.create_task(answer(service, body(CHAT, max_tokens=200), call()))
        async with asyncio.timeout(60):
            while not len(service.live_calls):  # noqa: ASYNC110, another task fills it
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            while service.engine.stats().live_requests:  # noqa: ASYNC110, on its thread
                await asyncio.sleep(0.001)
        assert task.cancelled()
        assert not len(service.live_calls)

    asyncio.run(run())


def test_a_line_of_a_batch_runs_behind_live_calls(service: Service) -> None:
    """Guards live calls: what says that nobody waits in person reaches the scheduler."""
    line = call(window_s=100.0, is_background=True, is_large=True)
    generation = asyncio.run(prepare(service, body(CHAT), line))
    (request,) = generation.reply.requests
    assert (request.is_background, request.priority) == (True, Priority.LOW)
    assert (request.queue_timeout_s, request.request_timeout_s) == (100.0, 100.0)
    assert line.turn == ("batches of ", True)
