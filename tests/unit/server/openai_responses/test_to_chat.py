"""Tests of bodies of responses: what is read, what is left out by name, and what becomes a chat."""

import json
from typing import Any

import pytest

from jitney.errors import InvalidRequest
from jitney.server.error_object import Refusal
from jitney.server.limits import VALUES_MAX
from jitney.server.openai_responses.response_body import ResponseBody, check_response
from jitney.server.openai_responses.to_chat import chat_body

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def checked(ignored: list[str] | None = None, **fields: Any) -> ResponseBody:
    return check_response(json.dumps(fields).encode(), VALUES_MAX, ignored)


def messages(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    body = chat_body(checked([], input=list(items), **fields))
    return [each.model_dump(exclude_none=True) for each in body.messages]


def test_a_text_is_a_message_of_the_user() -> None:
    """Guards the shortest call there is."""
    (said,) = chat_body(checked(input="hi")).messages
    assert (said.role, said.text) == ("user", "hi")


def test_what_systems_say_first_is_one_message() -> None:
    """Guards templates that take one: agents send instructions and several notes of a developer."""
    notes = [{"role": "developer", "content": "B"}, {"role": "system", "content": "C"}]
    said = messages(*notes, {"role": "user", "content": "hi"}, instructions="A")
    assert said[0] == {"role": "system", "content": "A\n\nB\n\nC"}
    assert len(said) == 2


def test_a_turn_with_calls_is_one_message() -> None:
    """Guards tool loops: text and calls of one turn belong together, and outputs follow."""
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]}
    second = {**CALL, "call_id": "c2"}
    asked = {"role": "user", "content": "go"}
    said = messages(asked, answer, CALL, second, OUTPUT, {**OUTPUT, "call_id": "c2"})
    assert [each["role"] for each in said] == ["user", "assistant", "tool", "tool"]
    assert said[1]["content"] == "Let me look."
    assert [each["id"] for each in said[1]["tool_calls"]] == ["c1", "c2"]


def test_what_has_no_meaning_here_is_left_out_by_name() -> None:
    """Guards agents, which send tools of OpenAI's: they are served, and told."""
    ignored: list[str] = []
    body = checked(
        ignored,
        input=[{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "w"}],
        tools=[TOOL, {"type": "web_search"}, {"type": "namespace", "name": "n", "tools": []}],
        include=["reasoning.encrypted_content"],
        reasoning={"summary": "auto"},
        client_metadata={"a": "b"},
    )
    assert sorted(ignored) == [
        *("client_metadata", "include.reasoning.encrypted_content", "input.web_search_call"),
        *("reasoning.summary", "tools.namespace", "tools.web_search"),
    ]
    assert [each.name for each in body.tools or ()] == ["look"]


def test_a_strict_server_refuses_the_same_by_name() -> None:
    """Guards `--strict`: nothing is left out there."""
    with pytest.raises(Refusal) as refused:
        checked(input="hi", tools=[TOOL, {"type": "web_search"}])
    assert refused.value.code == "unsupported_parameter"
    assert refused.value.param == "tools[1]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "nonsense"}]}, "input[0]"),
        ({"input": [{"type": "message", "role": "nobody", "content": "a"}]}, "input[0].role"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "hi", "max_tokens": 3}, "max_tokens"),
        ({"input": "hi", "n": 2}, "n"),
        ({"input": 3}, "input"),
        ({}, "input"),
    ],
)
def test_what_is_wrong_is_told_by_its_place(fields: dict[str, Any], param: str) -> None:
    """Guards callers: a refusal names the field."""
    with pytest.raises(Refusal) as refused:
        checked([], **fields)
    assert refused.value.status == 400
    assert refused.value.param == param


def test_sampling_and_form_are_those_of_a_chat() -> None:
    """Guards answers: what a response asks for reaches the engine."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    body = chat_body(
        checked(
            input="hi",
            temperature=0.5,
            top_p=0.9,
            seed=7,
            max_output_tokens=11,
            reasoning={"effort": "low"},
            text={"format": form},
            top_logprobs=2,
            include=["message.output_text.logprobs"],
        )
    )
    sampling = body.model_dump(include={"temperature", "top_p", "seed", "max_tokens"})
    assert sampling == {"temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 11}
    assert body.reasoning_effort == "low"
    assert body.response_format is not None
    assert body.response_format.model_dump(by_alias=True)["json_schema"]["schema"] == schema
    assert (body.logprobs, body.top_logprobs) == (True, 2)


def test_allowed_tools_are_the_only_ones() -> None:
    """Guards `allowed_tools`: the others are not told, and one that is not there is refused."""
    other = {**TOOL, "name": "go"}
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "go"}],
    }
    body = chat_body(checked(input="hi", tools=[TOOL, other], tool_choice=choice))
    assert [each.function.name for each in body.tools or ()] == ["go"]
    assert body.tool_choice == "required"
    with pytest.raises(InvalidRequest, match="not among the tools"):
        chat_body(checked(input="hi", tools=[TOOL], tool_choice=choice))


def test_thoughts_belong_to_the_turn_that_follows_them() -> None:
    """Guards models that read them, and clients that send back all they got."""
    text = [{"type": "reasoning_text", "text": "First I look."}]
    thought: dict[str, Any] = {"type": "reasoning", "id": "rs", "summary": [], "content": text}
    said = messages({"role": "user", "content": "hi"}, thought, CALL, OUTPUT)
    assert [each["role"] for each in said] == ["user", "assistant", "tool"]
    assert said[1]["reasoning_content"] == "First I look."
    assert said[1]["tool_calls"][0]["id"] == "c1"
    encrypted = {**thought, "content": None, "encrypted_content": "x"}
    assert len(messages({"role": "user", "content": "hi"}, encrypted)) == 1
