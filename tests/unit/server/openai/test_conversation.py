"""Tests of `jitney.server.openai.conversation`: how models are told of tools, and call them."""

import json
from typing import Any

import pytest

from jitney.core.backend import Vocabulary
from jitney.core.limits import CONSTRAINT_CHARACTERS_MAX
from jitney.errors import InvalidRequest
from jitney.sampling.closed_schema import closed_schema
from jitney.sampling.constraint import ConstraintCompiler
from jitney.server.formats.answer_families import ModelFormat, model_format
from jitney.server.formats.answer_forms import AnswerForm, Calling
from jitney.server.openai.chat_body import ChatBody, ChatMessage, Tool
from jitney.server.openai.conversation import (
    answer_form,
    as_text,
    enforced,
    message_values,
    offered_values,
    read_calling,
)
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

VOCABULARY = byte_vocabulary()
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "g", "description": "Does g."}},
]


def model(source: str = "", vocabulary: Vocabulary = VOCABULARY) -> ModelFormat:
    return model_format(source, vocabulary, knows_tools="tools" in source)


def body(**fields: Any) -> ChatBody:
    given = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **fields}
    return ChatBody.model_validate(given)


def calling(vocabulary: Vocabulary = VOCABULARY, source: str = "", **fields: Any) -> Calling:
    made = read_calling(body(**fields), model(source, vocabulary))
    assert made is not None
    return made


def test_what_a_choice_means() -> None:
    """Guards `tool_choice` in each of its forms."""
    assert calling().is_enforced is False
    assert calling(tool_choice="required").is_enforced is True
    named = calling(tool_choice={"type": "function", "function": {"name": "g"}})
    assert (named.is_enforced, named.names, named.parallel) == (True, ("g",), False)
    assert read_calling(body(tool_choice="none"), model()) is None
    assert read_calling(body(tools=None), model()) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "h"}}},
        {"tools": [TOOLS[0], TOOLS[0]]},
    ],
)
def test_choices_that_cannot_be(fields: dict[str, Any]) -> None:
    """Guards against constraints that nothing satisfies."""
    with pytest.raises(InvalidRequest):
        read_calling(body(**fields), model())


def accepts(text: str, made: Calling) -> bool:
    constraint = enforced(made, body().tools or []).constraint()
    compiler = ConstraintCompiler(VOCABULARY, lambda each: encode(each, special=False))
    matcher = compiler.compile(constraint)
    for token in text.encode():
        if not matcher.mask()[token]:
            return False
        matcher.advance_to([*getattr(matcher, "seen", []), token])
        matcher.seen = [*getattr(matcher, "seen", []), token]  # type: ignore[attr-defined]
    return bool(matcher.mask()[VOCABULARY.eos_tokens[0]])


@pytest.mark.parametrize(
    ("made", "good", "bad"),
    [
        (
            calling(tool_choice="required"),
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
            '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>',
        ),
        (
            calling(tool_choice="required"),
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
            "Hello.",
        ),
        (
            calling(source="{# [TOOL_CALLS] #}", tool_choice="required"),
            '[{"name": "f", "arguments": {"a": 1}}]',
            "[]",
        ),
        (
            calling(source="{# <|python_tag|> #}", tool_choice="required"),
            '{"name": "f", "parameters": {"a": 1}}',
            '{"name": "h", "parameters": {}}',
        ),
    ],
)
def test_enforced_calls_are_calls(made: Calling, good: str, bad: str) -> None:
    """Guards the constraint of each format: calls pass, and nothing else."""
    assert accepts(good, made)
    assert not accepts(bad, made)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("", '<tool_call>\n{"name": "f", "arguments": {"a": 1%s}}\n</tool_call>'),
        ("{# [TOOL_CALLS] #}", '[{"name": "f", "arguments": {"a": 1%s}}]'),
        ("{# <|python_tag|> #}", '{"name": "f", "parameters": {"a": 1%s}}'),
    ],
)
def test_enforced_arguments_are_those_that_the_tool_names(source: str, form: str) -> None:
    """Guards against invented arguments, in every form: one of them is a grammar, not a schema."""
    made = calling(source=source, tool_choice="required")
    assert accepts(form % "", made)
    assert not accepts(form % ', "z": 1', made)


def test_closing_does_not_make_tools_too_long() -> None:
    """Guards tools that just fit: closed, their text is longer than a constraint may be."""
    items: list[Any] = [{"properties": {}}] * (CONSTRAINT_CHARACTERS_MAX // 24)
    parameters = {"type": "array", "prefixItems": items}
    given = body(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    made = read_calling(given.model_copy(update={"tool_choice": "required"}), model())
    assert made is not None
    text = enforced(made, given.tools or []).constraint().text
    assert len(text) <= CONSTRAINT_CHARACTERS_MAX < len(closed_schema(json.dumps(parameters)))


def test_a_mark_that_is_a_control_token() -> None:
    """Guards models whose mark is no text: it is shown under auto, and left out when enforced."""
    marked = Vocabulary(
        pieces=(*VOCABULARY.pieces, b"[TOOL_CALLS]"),
        control=VOCABULARY.control | {len(VOCABULARY.pieces)},
        eos_tokens=VOCABULARY.eos_tokens,
    )
    source = "{# [TOOL_CALLS] #}"
    free, forced = calling(marked, source), calling(marked, source, tool_choice="required")
    shown = [
        model(source, marked).shows_control(AnswerForm(calling=each).marks)
        for each in (free, forced)
    ]
    assert shown == [True, False]
    assert [free.starts_inside, forced.starts_inside] == [False, True]
    assert len(free.new_id()) == 9
    assert calling().new_id().startswith("call_")


OFFERED = [
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
    values = [message_values(ChatMessage.model_validate(each)) for each in history]
    assert values[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    told = as_text(values, offered_values(OFFERED))
    assert [each["role"] for each in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.\n\n")
    listed = told[0]["content"].split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line)["function"]["name"] for line in listed] == ["f", "g"]
    assert json.loads(told[2]["content"].split("\n")[1]) == {"name": "f", "arguments": {"a": 1}}
    assert "42" in told[3]["content"]
    assert as_text(values[1:2], offered_values(OFFERED))[0]["role"] == "system"


def test_arguments_in_the_history_are_objects() -> None:
    """Guards templates, which read them as such; and agents whose model wrote none."""
    for text in ("[1]", '{"a": ', "nonsense", '{"a": NaN}', '{"a": "\\ud800"}'):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
        message = ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})
        (found,) = message_values(message)["tool_calls"]
        assert found["function"]["arguments"] == {"invalid_json": text}


def test_reasoning_that_comes_back_reaches_the_template() -> None:
    """Guards both names of the field, and templates that know reasoning and no tools."""
    for name in ("reasoning_content", "reasoning"):
        message = ChatMessage.model_validate({"role": "assistant", "content": "a", name: "Hm."})
        values = message_values(message)
        assert values["reasoning_content"] == "Hm."
        assert as_text([values], None) == [values]
    with pytest.raises(ValueError, match="messages of the assistant"):
        ChatMessage.model_validate({"role": "user", "content": "a", "reasoning": "Hm."})


@pytest.mark.parametrize(
    ("fields", "end", "is_thinking"),
    [
        ({}, "<|im_start|>assistant\n<think>\n", True),
        ({}, "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ({}, "<|im_start|>assistant\n", False),
        ({"continue_final_message": True}, "<think>Hm", True),
        ({"continue_final_message": True}, "<think>Hm</think>So", False),
    ],
)
def test_whether_an_answer_begins_within_the_reasoning(
    fields: dict[str, Any], end: str, is_thinking: bool
) -> None:
    """Guards templates that open the reasoning, and answers that are continued."""
    asked = body(messages=[{"role": "assistant", "content": end}], **fields)
    form = answer_form(asked, model("<think></think>"), None, (("<|user|>x", True), (end, True)))
    assert form.is_thinking is is_thinking


def test_calls_are_enforced_as_json_whatever_the_family() -> None:
    """Guards forms that no schema describes: what is enforced is read again."""
    for source in (
        "<|tool_calls_section_begin|>",
        "<|channel|>",
        "<|tool_call>",
        "<|python_start|>",
    ):
        made = calling(source=source, tool_choice="required")
        assert made.starts_inside
        assert accepts('{"name": "f", "arguments": {"a": 1}}', made)
