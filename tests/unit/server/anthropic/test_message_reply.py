"""Tests of `jitney.server.anthropic.message_reply`: deltas of OpenAI's form, and their events."""

import json
from typing import Any

import pytest

from jitney.server.anthropic.message_body import CountBody
from jitney.server.anthropic.message_chat import carried, chat_of
from jitney.server.anthropic.message_reply import _Blocks, content_of, message_event
from jitney.server.openai.conversation import message_values
from jitney.server.openai.replies import dump_json


def call(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": "f"} if head else {})}
    return {"tool_calls": [{"index": index, **head, "function": function}]}


THOUGHT = {"type": "thinking", "signature": "jitney"}
TOOL = {"type": "tool_use", "id": "1", "name": "f"}
DELTAS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([], []),
    ([{"role": "assistant", "content": ""}, {}], []),
    ([{"content": "a"}, {"content": "b"}], [{"type": "text", "text": "ab"}]),
    ([{"reasoning_content": "h"}, {"reasoning_content": "m"}, {"content": "a"}],
     [{**THOUGHT, "thinking": "hm"}, {"type": "text", "text": "a"}]),
    ([{"content": "a"}, call(0, "", id="1"), call(0, '{"a":'), call(0, "1}"),
      call(1, '{"b":2}', id="2")],
     [{"type": "text", "text": "a"}, {**TOOL, "input": {"a": 1}},
      {**TOOL, "id": "2", "input": {"b": 2}}]),
    ([call(0, "", id="1")], [{**TOOL, "input": {}}]),
    ([call(0, '{"a":', id="1")], [{**TOOL, "input": {"invalid_json": '{"a":'}}]),
    ([call(0, "[1", id="1"), call(0, ', "a"]'), {"content": "after"}],
     [{**TOOL, "input": {"invalid_json": '[1, "a"]'}}, {"type": "text", "text": "after"}]),
]  # fmt: skip


@pytest.mark.parametrize(("deltas", "expected"), DELTAS)
def test_deltas_are_blocks(deltas: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Guards clients that read blocks: each is opened once, added to and closed, in order."""
    blocks = _Blocks()
    events = [event for delta in deltas for event in blocks.events(delta)] + blocks.closed()
    open_index = None
    opened = 0
    for each in events:
        if each["type"] == "content_block_start":
            assert (open_index, each["index"]) == (None, opened)
            open_index, opened = each["index"], opened + 1
        else:
            assert each["index"] == open_index
            open_index = None if each["type"] == "content_block_stop" else open_index
    assert open_index is None
    assert content_of(events) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN, "b": nope}',
        '{"a": 1}{"b": 2}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        "hello",
        "null",
    ],
)
def test_input_that_is_no_json_is_told_and_comes_back(text: str) -> None:
    """Guards agents: no tool is run with nothing instead, the reply can be written, and the model
    reads what it wrote when the message comes back."""
    blocks = _Blocks()
    events = blocks.events(call(0, "", id="1"))
    for character in text:
        events += blocks.events(call(0, character))
    (block,) = content_of(events + blocks.closed())
    assert json.loads(dump_json(block).encode())["input"] == {"invalid_json": text}
    body = {"model": "m", "messages": [
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
    ]}  # fmt: skip
    told = message_values(chat_of(CountBody.model_validate(body), None).messages[0])
    assert told["tool_calls"][0]["function"]["arguments"] == {"invalid_json": text}


@pytest.mark.parametrize("text", ["hello", '["a\n"]', "1"])
def test_a_streamed_input_that_is_no_object_is_one_too(text: str) -> None:
    """Guards clients that read the pieces of an input as JSON."""
    blocks = _Blocks()
    events = blocks.events(call(0, text[:1], id="1"))
    events += [*blocks.events(call(0, text[1:])), *blocks.closed()]
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    pieces = [each["partial_json"] for each in deltas]
    assert json.loads("".join(pieces)) == {"invalid_json": text}


def test_thoughts_that_are_not_shown_travel_in_the_signature() -> None:
    """Guards the next call: it has the thought, though the caller never saw it."""
    blocks = _Blocks(hides_thinking=True)
    events = [
        *blocks.events({"reasoning_content": "h"}),
        *blocks.events({"reasoning_content": "m"}),
    ]
    (block,) = content_of(events + blocks.closed())
    assert block == {"type": "thinking", "thinking": "", "signature": carried("hm")}


@pytest.mark.parametrize("text", ["a", "\n\n", 'x"\\', "ü\u2028", "event: x\ndata: y"])
def test_a_text_is_one_event(text: str) -> None:
    """Guards streams: no text can end an event, or begin another one."""
    blocks = _Blocks()
    blocks.events({"content": "a"})
    (usual,) = blocks.events({"content": text})
    name, data, *rest = message_event(usual).decode().split("\n")
    assert (name, rest) == ("event: content_block_delta", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == usual
