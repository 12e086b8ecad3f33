"""Tests of `jitney.server.openai.conversation`: how models are told of tools."""

import json

import pytest

from jitney.errors import InvalidRequest
from jitney.server.openai.chat_body import ChatMessage, Tool
from jitney.server.openai.conversation import as_text, message_values, offered_values

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}),
    Tool.model_validate({"type": "function", "function": {"name": "g", "description": "Does g."}}),
]


def test_a_template_without_tools_gets_text() -> None:
    """Guards models that were never told of tools: all of it is in messages of plain roles."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    history = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    values = [message_values(ChatMessage.model_validate(each), 0) for each in history]
    assert values[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    told = as_text(values, offered_values(TOOLS))
    assert [each["role"] for each in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.\n\n")
    listed = told[0]["content"].split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line)["function"]["name"] for line in listed] == ["f", "g"]
    assert json.loads(told[2]["content"].split("\n")[1]) == {"name": "f", "arguments": {"a": 1}}
    assert "42" in told[3]["content"]
    assert as_text(values[1:2], offered_values(TOOLS))[0]["role"] == "system"


def test_arguments_in_the_history_are_objects() -> None:
    """Guards templates, which read them as such."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
    message = ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})
    with pytest.raises(InvalidRequest, match=r"messages\[3\]"):
        message_values(message, 3)
