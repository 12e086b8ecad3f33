"""OpenAI's own client against a real socket: it must understand everything that it is told."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from jitney.config import Key, ServeSettings
from tests.e2e.server.harness import MODEL, WAIT_S, Running, World, running

SECRET = "a-secret-of-the-tests"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "maxLength": 8},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["place", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "parameters": None}}
SCHEMA: Any = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    settings = ServeSettings(served_model_name=(MODEL,))
    with running(World(settings=settings, keys=(Key(name="one", secret=SECRET),))) as made:
        yield made


@pytest.fixture
def client(locked: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{locked.url}/v1", api_key=SECRET, max_retries=0, timeout=WAIT_S) as made:
        yield made


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def chat(client: OpenAI, text: str, **fields: Any) -> Any:  # Any: a reply, or its chunks
    """A chat of one message, or of those in `fields`."""
    return client.chat.completions.create(
        **{"model": MODEL, "messages": user(text), "max_tokens": 400, **fields}
    )


def test_models_chat_and_completions(client: OpenAI) -> None:
    """Guards the shapes of whole replies."""
    assert [each.id for each in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "jitney"
    reply = chat(client, "hi", max_tokens=None, max_completion_tokens=5, n=2, seed=1)
    assert reply.id.startswith("chatcmpl-")
    assert reply.object == "chat.completion"
    assert [each.finish_reason for each in reply.choices] == ["length", "length"]
    assert reply.usage.completion_tokens == 10
    assert reply.usage.prompt_tokens_details is not None
    assert reply._request_id is not None
    text = client.completions.create(model=MODEL, prompt="a", max_tokens=3, logprobs=2)
    assert text.id.startswith("cmpl-")
    assert text.choices[0].logprobs is not None
    assert len(text.choices[0].logprobs.tokens or ()) == 3


def test_streams_with_usage_and_logprobs(client: OpenAI) -> None:
    """Guards the shapes of chunks."""
    wanted: Any = {"stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2}
    chunks = list(chat(client, "hi", max_tokens=6, stream=True, seed=3, **wanted))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason is not None
    tokens = [
        token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs is not None
        for token in choice.logprobs.content or ()
    ]
    assert len(tokens) <= 6
    assert all(len(token.top_logprobs) == 2 for token in tokens)
    assert all(token.bytes is not None for token in tokens)


NAMED: Any = {"type": "function", "function": {"name": "weather"}}
TOOLS: Any = [WEATHER, CLOCK]


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("seed", range(4))
def test_calls_that_are_enforced(client: OpenAI, choice: Any, seed: int) -> None:
    """Guards the constraint: whatever the model would like to say, it calls a tool as it must."""
    wanted: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "seed": seed}
    wanted["parallel_tool_calls"] = False
    reply = chat(client, "what is the weather?", **wanted).choices[0]
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.message.tool_calls
    assert reply.message.content is None
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        assert set(arguments) == {"place", "days"}
        assert 1 <= arguments["days"] <= 9
    else:
        assert choice == "required"
        assert arguments == {}
    streamed = ""
    name = ""
    for chunk in chat(client, "what is the weather?", **wanted, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            assert part.index == 0
            if part.function is not None:
                name += part.function.name or ""
                streamed += part.function.arguments or ""
    assert (name, streamed) == (call.function.name, call.function.arguments)


def test_a_conversation_with_calls_goes_on(client: OpenAI) -> None:
    """Guards history: the message that came back can be sent again, with the tool's answer."""
    wanted: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    message = chat(client, "time?", tools=[CLOCK], seed=1, **wanted).choices[0].message
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"}
    history = [*user("time?"), message, answer]
    again = chat(client, "", messages=history, tools=[CLOCK], max_tokens=4, tool_choice="auto")
    assert again.usage.prompt_tokens > 20


def test_json_by_schema(client: OpenAI) -> None:
    """Guards `response_format`: the answer parses, and is what the schema says."""
    named: Any = {"name": "x", "schema": SCHEMA, "strict": True}
    form = {"type": "json_schema", "json_schema": named}
    reply = chat(client, "json", response_format=form, seed=2)
    made = json.loads(reply.choices[0].message.content)
    assert set(made) == {"ok", "n"}
    assert isinstance(made["ok"], bool)
    loose = chat(client, "json", response_format={"type": "json_object"}, max_tokens=300, seed=2)
    content = loose.choices[0].message.content
    if loose.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)
    else:
        assert content.startswith("{")


def test_errors_are_of_the_classes_that_callers_catch(client: OpenAI, locked: Running) -> None:
    """Guards programs that catch by class and look at codes."""
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="a" * 5000)
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "prompt"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="a")
    assert unknown.value.code == "model_not_found"
    stranger = OpenAI(base_url=f"{locked.url}/v1", api_key="wrong-key", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"
