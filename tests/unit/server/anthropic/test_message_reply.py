"""Tests of `jitney.server.anthropic.message_reply`: deltas of OpenAI's form, and their events."""

import json
from typing import Any

import pytest

from jitney.server.anthropic.message_chat import carried
from jitney.server.anthropic.message_reply import _Blocks, content_of, message_event


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
    ([call(0, '{"a":', id="1")], [{**TOOL, "input": {}}]),
    ([call(0, "[1]", id="1"), {"content": "after"}],
     [{**TOOL, "input": {}}, {"type": "text", "text": "after"}]),
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
