"""Responses over a socket: whole, streamed, with tools and schemas, and what is refused."""

import json
from typing import Any

import pytest

from tests.e2e.openai_responses.response_client import (
    TOOL,
    ask,
    check_numbers,
    events_of,
    text_of,
    timeless,
)
from tests.e2e.server.harness import Running, check_error

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
USER = {"role": "user", "content": "hi"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a tree"}


def test_a_stream_tells_what_the_whole_answer_says(server: Running) -> None:
    """Guards clients that change between the two: one text, one object."""
    whole = ask(server).json()
    events = events_of(ask(server, stream=True).text)
    check_numbers(events)
    kinds = [each["type"] for each in events]
    assert kinds[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert kinds[-4:] == [
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.incomplete"),
    ]
    streamed = events[-1]["response"]
    assert timeless(streamed) == timeless(whole)
    deltas = [each["delta"] for each in events if each["type"].endswith("text.delta")]
    assert "".join(deltas) == text_of(streamed) == text_of(whole)
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["usage"]["output_tokens"] == 8


def test_the_text_is_that_of_the_chat(server: Running) -> None:
    """Guards the translation: nothing is added to a conversation, and nothing is lost."""
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]
    chat = server.post(
        "/v1/chat/completions", {"messages": messages, "max_tokens": 8, "seed": 5}
    ).json()
    response = ask(server, instructions="Be short.").json()
    assert text_of(response) == chat["choices"][0]["message"]["content"]
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_an_item(server: Running, stream: bool) -> None:
    """Guards agents: a call has its name, arguments that are valid, and an id to answer to."""
    reply = ask(server, tools=[TOOL], tool_choice="required", stream=stream, max_output_tokens=200)
    response = events_of(reply.text)[-1]["response"] if stream else reply.json()
    call = response["output"][0]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "look", "completed")
    assert isinstance(json.loads(call["arguments"])["at"], int)
    again = ask(
        server, [{"role": "user", "content": "hi"}, call, {**OUTPUT, "call_id": call["call_id"]}]
    )
    assert again.status_code == 200
    if stream:
        written = [each for each in events_of(reply.text) if each.get("item_id") == call["id"]]
        deltas = [each["delta"] for each in written if each["type"].endswith("arguments.delta")]
        assert "".join(deltas) == call["arguments"]


def test_a_schema_is_enforced(server: Running) -> None:
    """Guards `text.format`."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    response = ask(server, text={"format": form}, max_output_tokens=100).json()
    assert isinstance(json.loads(text_of(response))["a"], bool)
    assert response["text"]["format"]["schema"] == schema


def test_logprobs_are_given_where_they_are_asked_for(server: Running) -> None:
    """Guards scores: one row for each token, whole and streamed."""
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = ask(server, **asked).json()["output"][0]["content"][0]["logprobs"]
    assert [len(each["top_logprobs"]) for each in whole] == [2] * 8
    events = events_of(ask(server, stream=True, **asked).text)
    rows = [
        row for each in events if each["type"].endswith("text.delta") for row in each["logprobs"]
    ]
    assert rows == whole


def test_what_is_left_out_is_named_in_a_header(server: Running) -> None:
    """Guards Codex: its own tools are skipped, and it can be seen."""
    reply = ask(server, tools=[TOOL, {"type": "web_search", "external_web_access": False}])
    assert reply.status_code == 200
    assert reply.headers["x-jitney-ignored"] == "tools.web_search"
    assert [each["name"] for each in reply.json()["tools"]] == ["look"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-0"}, 404, "model"),
        ({"input": []}, 400, "input"),
        ({"input": [{"type": "nonsense"}]}, 400, "input[0]"),
        ({"input": "x" * 200_000}, 400, "input"),
        ({"input": [USER, *[CALL] * 129, USER]}, 400, "input"),
        ({"input": [USER] * 4096, "instructions": "x"}, 400, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            400,
            "input[0].content",
        ),
        ({"tools": [{"type": "function", "name": "a b"}]}, 400, "tools[0].name"),
        ({"tools": [TOOL] * 129}, 400, "tools"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"max_tokens": 5}, 400, "max_tokens"),
        ({"response_format": {}}, 400, "response_format"),
        ({"reasoning_effort": "low"}, 400, "reasoning_effort"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"conversation": "conv_1"}, 400, "conversation"),
        ({"text": {"format": {"type": "json_schema"}}}, 400, "text"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"background": True, "store": False}, 400, "background"),
        ({"previous_response_id": "resp_0"}, 404, "previous_response_id"),
    ],
)
def test_what_is_wrong_is_refused(
    server: Running, fields: dict[str, Any], status: int, param: str
) -> None:
    """Row 54: a refusal comes before the first event, in OpenAI's form."""
    for stream in (False, True):
        reply = ask(server, **{"input": "hi", **fields}, stream=stream)
        assert "messages" not in check_error(reply, status, param)["message"]
    server.check_idle()
