"""Tests of the floor below HTTP: bodies are refused and made requests without a socket. That they
are answered and streamed is told by tests/e2e/server/test_streaming.py."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import ServeSettings
from jitney.core.request import Priority
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.loop import Inbox
from jitney.engine.request_factory import RequestFactory
from jitney.errors import ContextLengthExceeded, DeadlineExceeded, Draining, QueueFull
from jitney.server import limits
from jitney.server.admission.calls import Call
from jitney.server.admission.keys import Caller
from jitney.server.answer_call import answer, prepare
from jitney.server.openai.bodies import CompletionBody
from jitney.server.openai.chat_body import ChatBody
from jitney.server.responses import EventStream
from jitney.server.service import Service
from jitney.text.chat_template import ChatTemplate

MODEL_LEN = 256
WAIT_S = 60.0
CHAT = ChatBody.model_validate({"messages": [{"role": "user", "content": "Hello"}]})
LONG = CompletionBody.model_validate({"prompt": "x" * 2 * MODEL_LEN})
pytestmark = pytest.mark.anyio


@pytest.fixture
def service() -> Iterator[Service]:
    with serving(eos_period=0) as made:
        yield made


@contextmanager
def serving(eos_period: int, tick_s: float = 0.0) -> Iterator[Service]:
    backend = FakeBackend(FakeSettings(eos_period=eos_period, tick_s=tick_s, sleeps=True))
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


async def never() -> Message:
    return await asyncio.Future[Message]()


async def test_logprobs_without_a_number_of_tokens_end_where_their_limit_is(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards long contexts: what is refused by number must not be refused by default."""
    monkeypatch.setattr(limits, "LOGPROB_VALUES_MAX", 70)
    body = ChatBody.model_validate(
        {"messages": [{"role": "user", "content": "Hello"}], "logprobs": True, "top_logprobs": 6}
    )
    (choice,) = json.loads(await answer(service, body, call()))["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["content"]) == 10


async def test_what_is_wrong_is_raised_as_an_error(service: Service) -> None:
    """Guards callers that are no HTTP: nothing is turned into a response here."""
    with pytest.raises(ContextLengthExceeded):
        await answer(service, LONG, call())
    with pytest.raises(DeadlineExceeded):
        await answer(service, CHAT, call(due_at=service.clock.now() - 1.0))
    service.worker_threads.close()
    with pytest.raises(Draining):
        await answer(service, CHAT, call())


@pytest.mark.parametrize("eos_period", [0, 1])
async def test_what_scores_a_text_gets_one_token_more(eos_period: int) -> None:
    """Guards lm-eval, which leaves the last logprob out: it is never one of the text, also where
    the model would end there."""
    with serving(eos_period) as service:
        fields = {"prompt": [65, 66, 67], "max_tokens": 1, "echo": True, "logprobs": 1}
        body = CompletionBody.model_validate({**fields, "temperature": 0})
        (choice,) = json.loads(await answer(service, body, call()))["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["tokens"]) == 4
    assert choice["logprobs"]["tokens"][:3] == ["A", "B", "C"]


async def test_a_line_of_a_batch_runs_behind_live_calls(service: Service) -> None:
    """Guards live calls: what says that nobody waits in person reaches the scheduler."""
    line = call(window_s=100.0, is_background=True, is_large=True)
    generation = await prepare(service, CHAT, line)
    (request,) = generation.reply.requests
    assert (request.is_background, request.priority) == (True, Priority.LOW)
    assert (request.queue_timeout_s, request.request_timeout_s) == (100.0, 100.0)
    assert line.turn == ("batches of ", True)


async def test_a_slow_client_has_one_ping_to_read_and_none_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards memory and the next response of a connection: a ping waits until it is taken."""
    monkeypatch.setattr(limits, "PING_S", 0.001)
    body = CompletionBody.model_validate({"prompt": "a", "stream": True, "max_tokens": 200})
    pinged, taking, bodies = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            if message["body"] == b": ping\n\n":
                pinged.set()
            await taking.wait()

    with serving(eos_period=0, tick_s=0.05) as service:
        generation = await prepare(service, body, call())
        stream = EventStream(generation)
        await stream.open(Request({"type": "http"}, never))
        task = asyncio.create_task(stream({"type": "http"}, never, send))
        await pinged.wait()
        stream._ping()
        await asyncio.sleep(0)
        assert bodies.count(b": ping\n\n") == 1
        pinging = stream._pinging
        assert pinging is not None
        # The next one is due as the stream ends.
        taking.set()
        await pinging
        stream._ping()
        stream._send = None
        await asyncio.sleep(0)
        assert bodies.count(b": ping\n\n") == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_stream_whose_task_is_cancelled_ends_its_request() -> None:
    """Guards slots: a task may end while it waits for news, and its request ends then."""
    body = CompletionBody.model_validate({"prompt": "a", "stream": True, "max_tokens": 200})

    with serving(eos_period=0, tick_s=0.05) as service:
        generation, sent = await prepare(service, body, call()), asyncio.Queue[Message]()
        stream = EventStream(generation)
        await stream.open(Request({"type": "http"}, never))
        task = asyncio.create_task(stream({"type": "http"}, never, sent.put))
        await sent.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (handle,) = generation._handles
        async with asyncio.timeout(WAIT_S):
            assert (await handle.result_async()).was_cancelled


async def test_several_prompts_are_waited_for_as_long_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards a caller of two prompts: where nobody took them, its stream never began or ended."""
    monkeypatch.setattr(limits, "ACCEPT_S_MAX", 0.01)
    body = CompletionBody.model_validate({"prompt": ["a", "b"], "stream": True})
    with serving(eos_period=0) as service:
        monkeypatch.setattr(service.engine, "_inbox", Inbox(9))  # which nobody empties
        with pytest.raises(QueueFull, match="did not look"):
            await EventStream(await prepare(service, body, call())).open(
                Request({"type": "http"}, never)
            )


async def test_news_of_many_prompts_are_read_together(service: Service) -> None:
    """Guards the event loop: each of 128 prompts had all of them read at every tick."""
    prompts = {"prompt": ["a"] * 9, "stream": True}
    stream = EventStream(await prepare(service, CompletionBody.model_validate(prompts), call()))
    for _ in range(9):
        stream._note_news()
    assert len(service.loop_calls._calls) == 1
    stream._close()
