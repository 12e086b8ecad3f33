"""What llama-server's own tests of Anthropic's Messages ask, against answers of a script.

Each case is theirs in our words, whole and streamed: systems, parts, conversations, tools and their
results, thoughts, sampling. Not here, and why: an answer to a picture, as no backend reads any; an
empty list of messages, which they answer, and Anthropic and jitney refuse (`test_messages.py`, with
all other mistakes, stop sequences, enforced tools and the numbers of cached tokens).
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.backends.fake.script import read_script
from tests.e2e.server.harness import MODEL, Running, World, running
from tests.e2e.server.test_messages import check_error, events_of

PATH = "/v1/messages"
SYSTEM = "Always speak as a pirate."
CALL = {"name": "get_weather", "arguments": {"location": "Paris"}}
SCRIPT: list[dict[str, Any]] = [
    {"turn": 1, "contains": SYSTEM, "text": "Ahoy."},
    {"turn": 1, "contains": "weather in Paris", "text": "I look.", "calls": [CALL, CALL]},
    {"turn": 1, "contains": "2+2", "thinking": "Four, as ever.", "text": "4"},
    {"turn": 2, "contains": "not found", "text": "No such city."},
    {"turn": 2, "contains": "25", "text": "It is sunny."},
    {"turn": 2, "contains": "my name", "text": "Alice."},
    {"turn": 1, "contains": "second part", "text": "Both."},
    {"contains": "hello", "text": "Good day."},
]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a place.",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
PIXEL = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose answers are those of the script."""
    path = tmp_path_factory.mktemp("script") / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, SCRIPT)), encoding="utf-8")
    settings = FakeSettings(kv_tokens=65_536, script=read_script(path))
    with running(World(backend=settings)) as made:
        yield made


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def asked(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 500, "messages": [user(content)], **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def used(*before: Any) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"location": "Paris"}}
    return {"role": "assistant", "content": [*before, use]}


def result(*before: Any, **fields: Any) -> list[dict[str, Any]]:
    told = {"type": "tool_result", "tool_use_id": "t1", "content": "25 degrees", **fields}
    return [user("weather?"), used(), user([*before, told])]


TALK = [user("I am Alice."), {"role": "assistant", "content": "Hello!"}, user("What is my name?")]
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "basic": (asked(), "Good day."),
    "system": (asked(system=SYSTEM), "Ahoy."),
    "system-blocks": (asked(system=[text("Be short."), text(SYSTEM)]), "Ahoy."),
    "parts": (asked([text("the first part"), text("the second part")]), "Both."),
    "conversation": (asked(messages=TALK), "Alice."),
    "tool-result": (asked(messages=result()), "It is sunny."),
    "tool-result-blocks": (asked(messages=result(content=[text("25")])), "It is sunny."),
    "tool-result-text": (asked(messages=result(text("Here it is:"))), "It is sunny."),
    "tool-result-error": (
        asked(messages=result(is_error=True, content="City not found")),
        "No such city.",
    ),
    "temperature": (asked(temperature=0.5), "Good day."),
    "top-p": (asked(top_p=0.9), "Good day."),
    "top-k": (asked(top_k=40), "Good day."),
    "metadata": (asked(metadata={"user_id": "test_user_123"}), "Good day."),
    "tool-choice-none": (asked(tools=[TOOL], tool_choice={"type": "none"}), "Good day."),
    "ignored-fields": (asked(service_tier="auto", context_management={}), "Good day."),
}


def answered(server: Running, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """The message; one that is streamed is put together from its events."""
    reply = server.post(PATH, {**body, "stream": stream})
    assert reply.status_code == 200, reply.text
    return put_together(events_of(reply.text)) if stream else dict(reply.json())


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream, whose order is checked: its blocks one after the other."""
    message: dict[str, Any] = dict(events[0]["message"])
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    written, blocks = "", message["content"]
    for each in events[1:-2]:
        kind, delta = each["type"].removeprefix("content_block_"), each.get("delta", {})
        assert each["index"] == len(blocks) - (kind != "start")
        if kind == "start":
            blocks.append(each["content_block"])
        elif kind == "delta" and delta["type"] == "input_json_delta":
            written += delta["partial_json"]
        elif kind == "delta":
            name = delta["type"].removesuffix("_delta")
            blocks[-1][name] += delta[name]
        elif blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"], written = json.loads(written), ""
    assert events[-2]["type"] == "message_delta"
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_case_of_messages(scripted: Running, name: str, stream: bool) -> None:
    """Guards clients of the protocol: what they send reaches the model, and comes back in form."""
    body, words = CASES[name]
    message = answered(scripted, body, stream=stream)
    assert message["content"] == [text(words)]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["output_tokens"] > 0
    scripted.check_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_and_two_calls_are_three_blocks(scripted: Running, stream: bool) -> None:
    """Guards the numbers of blocks, and that ids of calls differ."""
    body = asked("What is the weather in Paris?", tools=[TOOL])
    message = answered(scripted, body, stream=stream)
    first, *calls = message["content"]
    assert first == text("I look.")
    assert [(each["type"], each["name"]) for each in calls] == [("tool_use", "get_weather")] * 2
    assert [each["input"] for each in calls] == [CALL["arguments"]] * 2
    assert len({each["id"] for each in calls}) == 2
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_a_thought_is_a_block_of_its_own(scripted: Running, stream: bool) -> None:
    """Guards agents that show thoughts apart."""
    body = asked("What is 2+2?", thinking={"type": "enabled", "budget_tokens": 100})
    thought, answer = answered(scripted, body, stream=stream)["content"]
    assert (thought["type"], thought["thinking"], answer) == (
        *("thinking", "Four, as ever."),
        text("4"),
    )


def test_tokens_are_counted_of_all_that_is_sent(scripted: Running) -> None:
    """Guards budgets: systems, tools and earlier thoughts count, and `max_tokens` is not needed."""

    def count(**fields: Any) -> int:
        body = {"model": MODEL, "messages": result(), **fields}
        told = scripted.post(f"{PATH}/count_tokens", body).json()
        assert set(told) == {"input_tokens"}
        return int(told["input_tokens"])

    plain = count()
    assert count(system=SYSTEM) > plain
    assert count(tools=[TOOL]) > plain
    thought = {"type": "thinking", "thinking": "I should look first.", "signature": ""}
    begun, _, told = result()
    assert count(messages=[begun, used(thought), told]) > plain > count(messages=[begun])


@pytest.mark.parametrize(
    "messages", [[user([PIXEL, text("What is it?")])], result(content=[PIXEL])]
)
def test_an_image_is_refused(scripted: Running, messages: list[Any]) -> None:
    """Guards whoever sends pictures, also as a tool's result: they are not left out in silence."""
    reply = scripted.post(PATH, asked(messages=messages))
    check_error(reply, 400, "invalid_request_error", "image")
