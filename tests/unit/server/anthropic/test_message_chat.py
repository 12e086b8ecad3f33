"""Tests of `jitney.server.anthropic.message_chat`: a table of bodies and their chats."""

from typing import Any

import pytest

from jitney.errors import InvalidRequest
from jitney.server.anthropic.message_body import MessagesBody
from jitney.server.anthropic.message_chat import BILLING, carried, chat_of
from jitney.server.error_object import Refusal
from jitney.server.openai.chat_body import ChatBody

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1, "ü"]}}
HEADING = f"{BILLING} cc_version=2.1.326.681; cc_entrypoint=cli; cch=a7713;"


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "1", **fields}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def chat(ignored: list[str] | None = None, **fields: Any) -> ChatBody:
    body = {"model": "m", "max_tokens": 8, "messages": [USER], **fields}
    return chat_of(MessagesBody.model_validate(body), ignored)


def messages_of(**fields: Any) -> list[dict[str, Any]]:
    """The messages of the chat, without what is not said."""
    found = chat([], **fields).messages
    return [each.model_dump(exclude_none=True, exclude_defaults=True) for each in found]


CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": [1, "ü"]}'}}],
}
MESSAGES: list[tuple[Any, Any]] = [
    ([USER], [USER]),
    ([{"role": "user", "content": [text("a"), text("b")]}], [{"role": "user", "content": "a\nb"}]),
    ([USER, {"role": "user", "content": "b"}], [{"role": "user", "content": "hi\nb"}]),
    ([USER, {"role": "system", "content": [text("be brief")]}],
     [{"role": "user", "content": "hi\n<system-reminder>\nbe brief\n</system-reminder>"}]),
    ([USER, {"role": "system", "content": []}], [USER]),
    ([USER, {"role": "assistant", "content": [text("a"), USE]},
      {"role": "user", "content": [result(content="r"), text("go on")]}],
     [USER, {**CALLED, "content": "a"}, {"role": "tool", "content": "r", "tool_call_id": "1"},
      {"role": "user", "content": "go on"}]),
    ([{"role": "assistant", "content": [USE]}, {"role": "user", "content": [
        result(content=[text("a"), {"type": "tool_reference", "tool_name": "g"}], is_error=True)]}],
     [CALLED, {"role": "tool", "tool_call_id": "1",
               "content": "Error: a\nThe tool g can be called."}]),
    ([{"role": "assistant", "content": [USE]}, {"role": "user", "content": [result()]}],
     [CALLED, {"role": "tool", "tool_call_id": "1", "content": ""}]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), MESSAGES)
def test_messages(given: Any, expected: Any) -> None:
    """Guards the prompt: each kind of block has its place, in order."""
    assert messages_of(messages=given) == expected


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("s", "s"),
        ([text("a"), text("b")], "a\nb"),
        (f"{HEADING}\ns", "s"),
        ([text(HEADING), text("s")], "s"),
        ([text(HEADING)], None),
        (f"s\n{HEADING}", f"s\n{HEADING}"),
    ],
)
def test_the_line_of_an_agent_is_left_out_of_the_system_prompt(system: Any, expected: Any) -> None:
    """Guards prefixes: that line differs from call to call, and stands before everything."""
    first = messages_of(system=system)[0]
    assert first == (USER if expected is None else {"role": "system", "content": expected})


FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"stop_sequences": ["x"], "temperature": 0.5, "top_p": 0.5, "top_k": 3, "stream": True},
     {"stop": ["x"], "temperature": 0.5, "top_p": 0.5, "top_k": 3, "stream": True}),
    ({"metadata": {"user_id": "u"}}, {"user": "u"}),
    ({"stop_sequences": []}, {"stop": None}),
    ({"tools": [TOOL]}, {"tool_choice": None}),
    ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
    ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
    ({"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
     {"tool_choice": "required", "parallel_tool_calls": False}),
    ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
    ({"messages": [USER, {"role": "assistant", "content": "I"}]}, {"continue_final_message": True}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), FIELDS)
def test_fields(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Guards what is asked of the sampler and of tools."""
    found = chat([], **given)
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_tool_by_name_and_a_schema_of_the_answer() -> None:
    """Guards both enforced forms."""
    found = chat([], tools=[TOOL], tool_choice={"type": "tool", "name": "f"}).model_dump()
    assert found["tool_choice"]["function"] == {"name": "f"}
    function = found["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("f", "d")
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    asked = {"format": {"type": "json_schema", "schema": schema}}
    form = chat([], output_config=asked).model_dump()["response_format"]
    assert form["json_schema"]["schema_"] == schema


@pytest.mark.parametrize(
    ("thinking", "is_on"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "updates"}, True),
        ({"type": "enabled", "budget_tokens": 2048}, True),
    ],
)
def test_thinking_is_off_unless_it_is_asked_for(thinking: Any, is_on: bool) -> None:
    """Guards short answers of agents, which have no room for thoughts."""
    found = chat([], thinking=thinking)
    assert found.chat_template_kwargs is not None
    assert found.chat_template_kwargs.enable_thinking is is_on


def test_thoughts_come_back_also_where_they_were_not_shown() -> None:
    """Guards the prefix of the next call: a thought is what it was."""
    shown = {"type": "thinking", "thinking": "hm", "signature": "jitney"}
    hidden = {"type": "thinking", "thinking": "", "signature": carried("hm")}
    strange = {"type": "thinking", "thinking": "", "signature": "EqQBCkYIBxgCKkBd"}
    for block, thought in ((shown, "hm"), (hidden, "hm"), (strange, None)):
        said = {"role": "assistant", "content": [block, text("a")]}
        last = messages_of(messages=[USER, said, USER])[1]
        assert last.get("reasoning_content") == thought


def test_a_budget_for_thinking_is_the_chats() -> None:
    """Guards agents that bound it."""
    assert chat([], thinking={"type": "enabled", "budget_tokens": 9}).thinking_token_budget == 9


def test_tools_come_and_go_within_a_conversation() -> None:
    """Guards agents that find tools late: those of the end are offered."""
    definition = {"type": "tool_definition", "definition": {**TOOL, "name": "g"}}
    removed = {"type": "tool_reference", "name": "f"}
    change = [{"type": "tool_addition", "tool": definition},
              {"type": "tool_removal", "tool": removed}]  # fmt: skip
    found = chat([], tools=[TOOL], messages=[USER, {"role": "system", "content": change}])
    assert [each.function.name for each in found.tools or []] == ["g"]


def test_a_tool_that_went_comes_back_by_its_name() -> None:
    """Guards agents that put a tool away for a while."""
    named = {"type": "tool_reference", "name": "f"}
    change = [{"type": kind, "tool": named} for kind in ("tool_removal", "tool_addition")]
    found = chat([], tools=[TOOL], messages=[USER, {"role": "system", "content": change}])
    assert [each.function.name for each in found.tools or []] == ["f"]


@pytest.mark.parametrize("ignored", [None, []])
def test_a_tool_that_was_never_there_is_named(ignored: list[str] | None) -> None:
    """Guards agents with a slip in a name: the model would never hear of the tool. One of
    Anthropic's servers was left out, and named, before."""
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "web_search"}}
    messages = [USER, {"role": "system", "content": [added]}]
    with pytest.raises(InvalidRequest, match="web_search"):
        chat(ignored, tools=[TOOL], messages=messages)
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert len(chat([], tools=[TOOL, search], messages=messages).tools or []) == 1


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([{"role": "user", "content": []}], r"^messages has no text, and no call or result"),
        ([{"role": "assistant", "content": [USE] * 129}, {"role": "user", "content": [result()]}],
         r"^messages: a turn has more than 128 calls"),
    ],
)  # fmt: skip
def test_what_a_chat_would_refuse_is_told_in_the_words_of_a_message(
    messages: Any, told: str
) -> None:
    """Guards callers against the names of another interface, and of a library."""
    with pytest.raises(InvalidRequest, match=told):
        chat([], messages=messages)


def test_what_is_left_out_is_named_or_refused() -> None:
    """Guards honesty: tools of Anthropic's servers, and thoughts that nobody here can read."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    thought = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    fields = {"tools": [TOOL, search], "messages": [USER, thought, USER]}
    ignored: list[str] = []
    assert len(chat(ignored, **fields).tools or []) == 1
    assert ignored == ["tools.type", "messages.content.redacted_thinking"]
    for wrong in (fields, {"messages": fields["messages"]}):
        with pytest.raises(Refusal):
            chat(None, **wrong)
    with pytest.raises(Refusal, match=r"tools\.type is not supported"):
        chat([], tools=[search])


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "assistant", "content": [USE]}]},
        {"messages": [{"role": "user", "content": [USE]}]},
        {"messages": [{"role": "assistant", "content": [result()]}]},
        {"messages": [{"role": "system", "content": [USE]}]},
        {"tool_choice": {"type": "tool", "name": "f"}},
        {"tools": [TOOL], "tool_choice": {"type": "any", "name": "f"}},
        {"thinking": {"type": "adaptive", "budget_tokens": 5}},
    ],
)
def test_what_has_no_place_is_refused(fields: dict[str, Any]) -> None:
    """Guards callers whose conversation is not one."""
    with pytest.raises(InvalidRequest):
        chat([], **fields)
