"""The cases of Open Responses' public test list, against answers of a script.

Each has the list's name and its input in our words, and holds what its validators hold: every field
that the object must have, and the events in their order. Not here, and why:

- `image-input` wants an answer: no backend reads pictures, so it is refused, and told by name.
- Events `response.reasoning.*`: OpenAI's own clients read `response.reasoning_text.*`, which is
  what comes.
- Summaries of reasoning, refusals and annotations: a model here writes none.
- Tools that a server runs, `/responses/compact`, `/responses/input_tokens` and web sockets: there
  are none here.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.backends.fake.script import read_script
from tests.e2e.openai_responses.response_client import PATH, check_numbers, events_of, text_of
from tests.e2e.server.harness import MODEL, Running, World, check_error, running

FIELDS = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key",
}  # fmt: skip
"""What a response must have; some may be null."""
MAY_BE_NULL = {
    "incomplete_details", "previous_response_id", "instructions", "error", "reasoning", "user",
    "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key",
}  # fmt: skip
CALL = {"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}
SCRIPT: list[dict[str, Any]] = [
    {"contains": "weather", "thinking": "A tool knows.", "calls": [CALL]},
    {"contains": "pirate", "text": "Ahoy."},
    {"turn": 2, "contains": "my name?", "text": "Alice."},
    {"contains": "Count", "text": "1, 2, 3, 4, 5."},
    {"contains": "hello", "text": "Hello there, friend."},
]
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
ITEM = {"output_item", "content_part"}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose answers are those of the script."""
    path = tmp_path_factory.mktemp("script") / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, SCRIPT)), encoding="utf-8")
    settings = FakeSettings(kv_tokens=65_536, script=read_script(path))
    with running(World(backend=settings)) as made:
        yield made


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "basic-response": ({"input": [said("user", "Say hello.")]}, "Hello there, friend."),
    "streaming-response": ({"input": [said("user", "Count to 5.")]}, "1, 2, 3, 4, 5."),
    "system-prompt": (
        {"input": [said("system", "You are a pirate."), said("user", "Say it.")]},
        "Ahoy.",
    ),
    "multi-turn": (
        {
            "input": [
                said("user", "I am Alice."),
                said("assistant", "Hello Alice!"),
                said("user", "What is my name?"),
            ]
        },
        "Alice.",
    ),
    "tool-calling": ({"input": [said("user", "What is the weather?")], "tools": [TOOL]}, ""),
}


def answered(server: Running, body: dict[str, Any], *, stream: bool) -> tuple[Any, list[Any]]:
    """The response, and its events if it is streamed."""
    reply = server.post(PATH, {"model": MODEL, "stream": stream, **body})
    assert reply.status_code == 200, reply.text
    events = events_of(reply.text) if stream else []
    return (events[-1]["response"] if stream else reply.json()), events


def check_resource(response: dict[str, Any]) -> None:
    """That all fields are there, and only those that may be null are."""
    assert set(response) >= FIELDS
    assert {name for name in FIELDS if response[name] is None} <= MAY_BE_NULL
    assert (response["object"], response["status"]) == ("response", "completed")
    assert response["output"]
    assert all(each["id"] and each["status"] == "completed" for each in response["output"])
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def check_events(events: list[dict[str, Any]]) -> None:
    """That each item and each part is opened, written and closed, one after the other."""
    check_numbers(events)
    assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    opened: list[tuple[str, int]] = []
    for each in events[2:-1]:
        _, name, word = each["type"].split(".")
        place = (name, each["output_index"])
        if name in ITEM and word == "added":
            opened.append(place)
        elif name in ITEM:
            assert (opened.pop(), word) == (place, "done")
        else:
            assert opened[-1][1] == each["output_index"]
            assert word in ("delta", "done")
    assert not opened


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_case_of_open_responses(scripted: Running, name: str, stream: bool) -> None:
    """Guards clients of the open protocol: each case is answered, whole and streamed."""
    body, text = CASES[name]
    response, events = answered(scripted, body, stream=stream)
    check_resource(response)
    assert text_of(response) == text
    if stream:
        check_events(events)
    scripted.check_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_and_the_thought_before_it_are_items(scripted: Running, stream: bool) -> None:
    """`tool-calling` and `tool-calling-streaming`: the call, its events, and its answer."""
    body, _ = CASES["tool-calling"]
    response, events = answered(scripted, body, stream=stream)
    thought, call = response["output"]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "A tool knows.")
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"]) == CALL["arguments"]
    if stream:
        mine = [each for each in events[2:-1] if each["output_index"] == 1]
        kinds = [each["type"].removeprefix("response.") for each in mine]
        written = "function_call_arguments"
        assert kinds[0] == "output_item.added"
        assert set(kinds[1:-2]) == {f"{written}.delta"}
        assert kinds[-2:] == [f"{written}.done", "output_item.done"]
        assert "".join(each["delta"] for each in mine[1:-2]) == call["arguments"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hello"}
    again = {"input": [*body["input"], thought, call, output], "tools": [TOOL]}
    assert text_of(answered(scripted, again, stream=stream)[0]) == "Hello there, friend."


def test_an_image_is_refused_by_name(scripted: Running) -> None:
    """`image-input`: no answer that only looks as though the picture had been seen."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    content = [{"type": "input_text", "text": "What do you see?"}, image]
    reply = scripted.post(PATH, {"model": MODEL, "input": [said("user", content)]})
    assert "image input" in check_error(reply, 400, "input[0].content")["message"]
