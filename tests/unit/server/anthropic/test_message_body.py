"""Tests of `jitney.server.anthropic.message_body`: what is taken, and where a mistake is."""

import json
from typing import Any

import pytest

from jitney.server.anthropic.message_body import MessagesBody, NewTool, ToolAddition
from jitney.server.anthropic.message_fields import IGNORED_PARTS, UNKNOWN
from jitney.server.error_object import Refusal
from jitney.server.openai.check_body import check_fields

CACHED = {"cache_control": {"type": "ephemeral"}}
FULL: dict[str, Any] = {
    "model": "m",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "s", **CACHED}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u", **CACHED}], **CACHED},
        {"role": "system", "content": [], "output_config": {"effort": "low"}},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "1", "name": "f", "input": {}, "caller": {"type": "direct"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "is_error": False, **CACHED,
             "content": [{"type": "text", "text": "r", **CACHED}]},
        ]},
    ],
    "tools": [{"name": "f", "input_schema": {}, "defer_loading": True, **CACHED}],
}  # fmt: skip


def checked(fields: dict[str, Any], ignored: list[str] | None = None) -> MessagesBody:
    return check_fields({**FULL, **fields}, MessagesBody, ignored)


def test_what_is_ignored_is_named_by_its_place() -> None:
    """Guards the header: names of the table alone, and nothing else is ignored."""
    ignored: list[str] = []
    body = checked({"service_tier": "fast"}, ignored)
    assert set(ignored) - {"service_tier"} < set(IGNORED_PARTS)
    assert "messages.content.content.cache_control" in ignored
    assert body.messages[1].content == []


def test_a_string_is_one_block_of_text() -> None:
    """Guards everything that reads bodies: there is one form."""
    body = checked({"system": "s", "messages": [{"role": "user", "content": "u"}], "tools": None})
    assert [each.text for each in body.system or []] == ["s"]
    assert [each.type for each in body.messages[0].content] == ["text"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 1}]}]},
         "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "system", "content": [
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {}}}]}]},
         "messages[0].content[0].tool.definition.name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "custom", "name": "f", "input_schema": {}, "x": 1}]}, "tools[0].x"),
        ({"tool_choice": {"type": "any", "x": 1}}, "tool_choice.x"),
        ({"system": [{"type": "image"}]}, "system"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_place(fields: dict[str, Any], param: str) -> None:
    """Guards callers: no name of a form stands in between."""
    with pytest.raises(Refusal) as refused:
        checked(fields, [])
    assert refused.value.param == param


NEW = {"brand_new": {"a": [1]}}
OF_BETAS: dict[str, Any] = {
    "system": [{"type": "text", "text": "s", **NEW}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u", **NEW}, {"type": "tool_result",
         "tool_use_id": "1", "content": [{"type": "text", "text": "r", **NEW}], **NEW}], **NEW},
        {"role": "system", "content": [{"type": "tool_addition", "tool": {
            "type": "tool_definition", "definition": {"name": "g", "input_schema": NEW, **NEW},
            **NEW}, **NEW}]},
    ],
    "tools": [
        {"name": "f", "input_schema": {}, **NEW, "text": 1, "own": 2, **CACHED},
        {"type": "new_20270101", "name": "n", **NEW},
    ],
    "tool_choice": {"type": "auto", "tool": 1, **NEW},
    "thinking": {"type": "adaptive", **NEW},
    "output_config": {"effort": "low", **NEW},
    "metadata": NEW,
    **NEW,
}  # fmt: skip


def test_unknown_fields_are_left_out_at_every_place() -> None:
    """Guards agents that try betas: a field that nobody knows is ignored wherever it stands, and
    free objects stay as they are."""
    ignored: list[str] = []
    fields = json.loads(json.dumps({**FULL, **OF_BETAS}))
    body = check_fields(fields, MessagesBody, ignored, unknown=UNKNOWN)
    assert ignored.count(UNKNOWN) == 1
    assert "tools.cache_control" in ignored
    assert [each.name for each in body.tools or []] == ["f", "n"]
    (addition,) = body.messages[1].content
    assert isinstance(addition, ToolAddition)
    assert isinstance(addition.tool, NewTool)
    assert addition.tool.definition.input_schema == NEW
    with pytest.raises(Refusal):
        checked(OF_BETAS, [])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": "f", **NEW}]}, "tools[0].input_schema"),
        ({"thinking": {"type": "new", **NEW}}, "thinking.type"),
        ({"compaction": NEW, **NEW}, "compaction"),
    ],
)
def test_mistakes_beside_unknown_fields_are_named(fields: dict[str, Any], param: str) -> None:
    """Guards callers of betas: only what is unknown is left out."""
    with pytest.raises(Refusal) as refused:
        check_fields({**FULL, **json.loads(json.dumps(fields))}, MessagesBody, [], unknown=UNKNOWN)
    assert refused.value.param == param
    with pytest.raises(Refusal):
        check_fields({**FULL, **NEW}, MessagesBody, None, unknown=UNKNOWN)
