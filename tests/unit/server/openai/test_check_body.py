"""Tests of `jitney.server.openai.check_body`: JSON from strangers, and wrong fields."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jitney.server.error_object import Refusal
from jitney.server.limits import (
    CONTAINERS_MAX,
    DEPTH_MAX,
    OBJECT_KEYS_MAX,
    TOKENS_LISTED_MAX,
    VALUES_MAX,
)
from jitney.server.openai.bodies import CompletionBody, DetokenizeBody, Strict
from jitney.server.openai.chat_body import ChatBody, TokenizeBody
from jitney.server.openai.check_body import check_body, parse_object

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.text(), JSON_VALUES), st.booleans())
def test_what_json_writes_is_read_back(value: dict[str, Any], is_ascii: bool) -> None:
    """Guards honest bodies: every object comes through as it was."""
    assert parse_object(json.dumps(value, ensure_ascii=is_ascii).encode()) == value


@given(st.binary(max_size=200))
def test_bytes_are_an_object_or_a_refusal(content: bytes) -> None:
    """Guards the server: nothing else comes out, whatever goes in."""
    status = 200
    try:
        assert isinstance(parse_object(content), dict)
    except Refusal as refusal:
        status = refusal.status
    assert status in (200, 400)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_has_a_limit(opening: str) -> None:
    """Guards the stack, one level to either side."""
    closing = "]" if opening == "[" else "}"

    def nested(depth: int) -> bytes:
        inner = opening * depth + "1" + closing * depth
        return b'{"x": ' + inner.encode() + b"}"

    assert parse_object(nested(DEPTH_MAX - 1))
    with pytest.raises(Refusal, match="nested"):
        parse_object(nested(DEPTH_MAX))


def test_keys_have_a_limit() -> None:
    """Guards against objects made to be slow."""
    assert len(parse_object(json.dumps(dict.fromkeys(map(str, range(OBJECT_KEYS_MAX)))).encode()))
    with pytest.raises(Refusal, match="keys"):
        parse_object(json.dumps(dict.fromkeys(map(str, range(OBJECT_KEYS_MAX + 1)))).encode())


def test_half_a_character_is_refused_and_a_whole_one_is_not() -> None:
    """Guards text that no encoding can carry."""
    assert parse_object(rb'{"a": "\ud83d\ude42"}') == {"a": "🙂"}
    with pytest.raises(Refusal, match="surrogate"):
        parse_object(rb'{"a": "\ude42"}')


def test_escapes_without_end_are_looked_at_once() -> None:
    """Guards the event loop: a reader that began anew at every mark would be here for hours."""
    content = b'{"a": "' + rb"[\"" * 2_000_000
    assert len(parse_object(content + b'"}')["a"]) == 4_000_000
    for ending in (b"", b"\\"):
        with pytest.raises(Refusal, match="Unterminated"):
            parse_object(content + ending)


@given(st.text(alphabet='[{}]\\"a,: ', max_size=60))
def test_what_stands_in_strings_is_no_depth(text: str) -> None:
    """Guards the count of levels: marks and escapes in a string change nothing outside of it."""
    inner = json.dumps(text)
    flat = f'{{"x": [{inner}, {"[" * (DEPTH_MAX - 2)}{inner}{"]" * (DEPTH_MAX - 2)}, {inner}]}}'
    assert parse_object(flat.encode())["x"][0] == text
    deep = f'{{"x": [{inner}, {"[" * (DEPTH_MAX - 1)}{inner}{"]" * (DEPTH_MAX - 1)}, {inner}]}}'
    with pytest.raises(Refusal, match="nested"):
        parse_object(deep.encode())


def test_lists_have_a_limit() -> None:
    """Guards memory: three bytes of a body may not become a hundred of ours without end."""
    assert parse_object(b'{"x": [' + b"[]," * (CONTAINERS_MAX - 2) + b"1]}")
    with pytest.raises(Refusal, match="lists and objects"):
        parse_object(b'{"x": [' + b"[]," * (CONTAINERS_MAX - 1) + b"1]}")


def test_strings_have_a_limit_of_their_own() -> None:
    """Guards everybody else: only a list of tokens needs more values than this, however large
    bodies may be."""
    texts = b'"",' * (VALUES_MAX - 1)
    assert parse_object(b'{"x": [' + texts + b"1]}", 2 * VALUES_MAX)
    with pytest.raises(Refusal, match=f"more than {VALUES_MAX} strings"):
        parse_object(b'{"x": [' + texts + b'""]}', 2 * VALUES_MAX)
    assert parse_object(b'{"x": [' + b"1," * VALUES_MAX + b"1]}", 2 * VALUES_MAX)


def test_other_threads_may_go_on_between_two_numbers() -> None:
    """Guards streams: json reads a list of numbers in one step, in which no other thread runs.

    Threads change only where Python code runs, so there must be a call for each number.
    """
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(event))
    try:
        parse_object(b'{"x": [' + b"1," * 999 + b"1.5]}")
    finally:
        sys.setprofile(None)
    assert calls.count("call") >= 1000


MESSAGES = [{"role": "user", "content": "x"}]


def refused(fields: dict[str, Any], kind: type[Strict] = ChatBody) -> Refusal:
    with pytest.raises(Refusal) as caught:
        check_body(json.dumps(fields).encode(), kind)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "code", "param", "words"),
    [
        ({"temperature": "x"}, "invalid_type", "temperature", "number"),
        ({"temperature": 3}, "invalid_value", "temperature", "less than or equal to 2"),
        ({"temprature": 1}, "unknown_parameter", "temprature", "temperature"),
        ({"x-y z": 1}, "unknown_parameter", "x-y z", "no field"),
        ({"": 1}, "unknown_parameter", None, "no field"),
        ({"stream_options": {"str": 1}}, "unknown_parameter", "stream_options.str", "no field"),
        ({"tools": [{"type": "custom"}]}, "invalid_value", "tools[0].type", "function"),
        ({"stop": 5}, "invalid_value", "stop", "list of up to 16"),
        ({"tool_choice": "some"}, "invalid_value", "tool_choice", "required"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter",
         "response_format.json_schema", "response_format.json_schema is missing"),
        ({"response_format": 5}, "invalid_value", "response_format", "json_schema"),
        ({"response_format": {"type": "text", "more": 1}}, "unknown_parameter",
         "response_format.more", "no field"),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "invalid_type",
         "response_format.json_schema", "must be an object"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
         "invalid_value", "response_format.json_schema.name", "pattern"),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"name": "a", "schema": False}}},
         "invalid_type", "response_format.json_schema.schema", "must be an object"),
        ({"messages": [5]}, "invalid_type", "messages[0]", "must be an object"),
        ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio", "text only"),
        ({"messages": [{"role": "user", "content": []}, {"role": "x"}]}, "invalid_value",
         "messages[1].role", "assistant"),
        ({"stream_options": {"include_obfuscation": True}}, "invalid_value",
         "stream_options.include_obfuscation", ""),
        # Our own names for fields are nobody else's.
        ({"structured_outputs": {"json_": {}}}, "unknown_parameter", "structured_outputs.json_",
         "no field"),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"name": "a", "schema_": {}}}},
         "unknown_parameter", "response_format.json_schema.schema_", "no field"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(
    fields: dict[str, Any], code: str, param: str | None, words: str
) -> None:
    """Guards the caller's time: one sentence, the field, a code to match on."""
    refusal = refused({"messages": MESSAGES, **fields})
    assert (refusal.status, refusal.code, refusal.param) == (400, code, param)
    assert words in refusal.message
    assert refusal.message.endswith((".", "?"))
    assert "pydantic" not in refusal.message


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2], 5, {}], ids=str)
def test_a_prompt_to_tokenize_is_a_string(prompt: Any) -> None:
    """Guards /tokenize: it named the forms of a completion's prompt, which had been sent."""
    refusal = refused({"prompt": prompt}, TokenizeBody)
    assert refusal.message == "prompt must be a string."
    assert (refusal.code, refusal.param) == ("invalid_type", "prompt")


def test_too_many_prompts_are_said_once() -> None:
    """Guards the sentence: the field stands before it already."""
    refusal = refused({"prompt": ["a"] * 129}, CompletionBody)
    assert refusal.message == "prompt: there are 129 prompts; the limit is 128 in one call."


FAULTS_MAX = 20
LONG = 300_000


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [-1] * LONG},
        {"prompt": [1] * LONG + ["a"] * LONG},
        {"prompt": [[-1] * LONG]},
        {"prompt": [["a"]] * 60_000},
        {"prompt": "a", "stop": [5] * LONG},
        {"prompt": "a", "stop_token_ids": [-5] * LONG},
        {"prompt": "a", "structured_outputs": {"choice": [1] * LONG}},
        {"tokens": [-1] * LONG},
        {"messages": [{}] * 60_000},
        {"messages": [{"role": "user", "content": [1] * LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}] * 60_000}]},
        {"messages": [{"role": "assistant", "tool_calls": [1] * LONG}]},
        {"messages": MESSAGES, "tools": [1] * LONG},
    ],
)
def test_a_long_list_of_mistakes_is_one_mistake(fields: dict[str, Any]) -> None:
    """Guards time and memory: the second bad item is not looked at, nor is one past the limit."""
    kind: type[Strict] = CompletionBody
    if "messages" in fields:
        kind = ChatBody
    elif "tokens" in fields:
        kind = DetokenizeBody
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)
    assert caught.value.error_count() < FAULTS_MAX


def test_a_prompt_of_many_tokens_is_no_mistake() -> None:
    """Guards evaluation tools: a list may be as long as any context."""
    body = CompletionBody.model_validate({"prompt": [1] * LONG})
    assert len(body.prompt) == LONG
    with pytest.raises(ValidationError, match="the limit is"):
        CompletionBody.model_validate({"prompt": [1] * (TOKENS_LISTED_MAX + 1)})


def test_null_is_the_same_as_nothing() -> None:
    """Guards clients that write out every field they know."""
    names = [name for name in ChatBody.model_fields if name != "messages"]
    nothing = {**dict.fromkeys(names), "metadata": None, "audio": None}
    body = check_body(json.dumps({"messages": MESSAGES, **nothing}).encode(), ChatBody)
    assert body == ChatBody.model_validate({"messages": MESSAGES})


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text())))
def test_no_body_is_too_strange(fields: dict[str, Any]) -> None:
    """Guards against mistakes of ours: any object is a body or a refusal."""
    status = 200
    try:
        check_body(json.dumps({"messages": MESSAGES, **fields}).encode(), ChatBody)
    except Refusal as refusal:
        status = refusal.status
    assert status in (200, 400)
