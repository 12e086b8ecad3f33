"""Tests of `jitney.server.formats.answer_parser`: calls are found in text, however it is cut."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.server.formats.answer_families import HERMES, LLAMA, MISTRAL
from jitney.server.formats.answer_forms import AnswerForm, CallForm, Calling
from jitney.server.formats.answer_parser import AnswerParser
from tests.unit.server.formats.counted import check_linear

Read = tuple[str, list[tuple[str, str]]]


def parser_of(calling: Calling) -> AnswerParser:
    return AnswerParser(AnswerForm(calling=calling))


def read(parts: list[str], form: CallForm, **choices: Any) -> Read:
    parser = parser_of(Calling(form=form, names=("f", "g"), **choices))
    pieces = [piece for part in parts for piece in parser.push(part)]
    pieces += parser.finish()
    content = "".join(piece.get("content", "") for piece in pieces)
    calls: list[list[str]] = []
    for part in (part for piece in pieces for part in piece.get("tool_calls", ())):
        if "id" in part:
            assert part["index"] == len(calls)
            calls.append([part["function"]["name"], ""])
        calls[part["index"]][1] += part["function"]["arguments"]
    assert parser.call_count == len(calls), "what was told as a call is counted as one"
    return content, [(name, arguments) for name, arguments in calls]


CASES: list[tuple[CallForm, str, Read]] = [
    (HERMES, "plain text  ", ("plain text  ", [])),
    (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        ("", [("f", '{"a": 1}')]),
    ),
    (
        HERMES,
        'Well.\n<tool_call>{"arguments": {"z": "}<\\""}, "name": "g"}</tool_call>\n'
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        ("Well.", [("g", '{"z": "}<\\""}'), ("f", "{}")]),
    ),
    (HERMES, '<tool_call>{"name": "x"}</tool_call>', ('<tool_call>{"name": "x"}</tool_call>', [])),
    (HERMES, "<tool_call>no json</tool_call>", ("<tool_call>no json</tool_call>", [])),
    (HERMES, "a < b <tool", ("a < b <tool", [])),
    (HERMES, '<tool_call>{"na', ('<tool_call>{"na', [])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}', ("", [("f", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a', ("", [("f", '{"a')])),
    (MISTRAL, '[TOOL_CALLS][{"name": "f"}, {"name": "g", ', ("", [("f", "{}"), ("g", "")])),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        ("", [("f", '{"a": 1}')]),
    ),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": 1}, "arguments": {"b": 2}}</tool_call>',
        ("", [("f", '{"a": 1}')]),
    ),
    (LLAMA, '{"name": "f", "parameters": {"a": 1} {"b": 2}}', ("", [("f", '{"a": 1}')])),
    (
        HERMES,
        '<tool_call>{"arguments": "x", "arguments": {"b": 2}, "name": "f"}</tool_call>',
        ("", [("f", "x")]),
    ),
    (LLAMA, '{"name": "f", "parameters": [1, {"a": 2}]}', ("", [("f", '[1, {"a": 2}]')])),
    (LLAMA, '{"name": "f", "parameters": nope }', ("", [("f", "nope")])),
    (LLAMA, '{"name": "f", "parameters": 1 , "x": 2}', ("", [("f", "1")])),
    (LLAMA, '{"name": "f", "parameters": null}', ("", [("f", "{}")])),
    (LLAMA, '{"name": "f", "parameters": {"a": [1, {}]}}', ("", [("f", '{"a": [1, {}]}')])),
    (LLAMA, '{"name": "f", "parameters": {}}}} so', ("so", [("f", "{}")])),
    (
        HERMES,
        'a<tool_call>{"name": "f", "arguments": {}}}}\n</tool_call> so '
        '<tool_call>{"name": "g"}}</tool_call>',
        ("aso", [("f", "{}"), ("g", "{}")]),
    ),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "f"}}, {"name": "g"}]] so',
        ("so", [("f", "{}"), ("g", "{}")]),
    ),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {}</tool_call><tool_call>{"name": "g"</tool_call>a',
        ("a", [("f", "{}"), ("g", "{}")]),
    ),
    (LLAMA, '{"name": "f"}; {"name": "g", "parameters": {}}', ("", [("f", "{}"), ("g", "{}")])),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}', ("", [("f", "{}")])),
    (LLAMA, ' {"answer": 42}', (' {"answer": 42}', [])),
    (LLAMA, 'Call {"name": "f"}', ('Call {"name": "f"}', [])),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g"}]',
        ("", [("f", "{}"), ("g", "{}")]),
    ),
    (MISTRAL, "[TOOL_CALLS] f(1)", ("[TOOL_CALLS] f(1)", [])),
    (MISTRAL, "hi [TOOL_CALLS]", ("hi [TOOL_CALLS]", [])),
    (MISTRAL, "hi [TOOL_CALLS] [ ", ("hi [TOOL_CALLS] [ ", [])),
    (MISTRAL, '[TOOL_CALLS][{"name": "f"}] \n so \n', ("so", [("f", "{}")])),
    (MISTRAL, '[TOOL_CALLS][{"name": "f"}, ', ("", [("f", "{}")])),
    (HERMES, "a \n <tool_call>no</tool_call> b", ("a \n <tool_call>no</tool_call> b", [])),
    (HERMES, "a \n <tool_call>", ("a \n <tool_call>", [])),
    (
        HERMES,
        'a \n <tool_call>{"name": "f"}</tool_call> \n b <tool_call>x',
        ("ab <tool_call>x", [("f", "{}")]),
    ),
    (LLAMA, " \n <|python_tag|>print()", (" \n <|python_tag|>print()", [])),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_calls_and_content_are_told_apart(form: CallForm, text: str, expected: Read) -> None:
    """Guards each format, and what only looks like it."""
    assert read([text], form) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200), max_size=12))
def test_the_cuts_between_deltas_change_nothing(
    case: tuple[CallForm, str, Read], cuts: list[int]
) -> None:
    """Guards streams: any split adds up to what the whole text is."""
    form, text, expected = case
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[start:end] for start, end in pairwise(places)]
    assert read(parts, form) == expected
    assert read(list(text), form) == expected


@given(st.text(alphabet='<>tool_cal/{}[]":,\\ nameargumts1f\n|python_tag', max_size=80))
def test_no_text_is_too_strange(text: str) -> None:
    """Guards the parser: it always ends, and text without a call comes back whole."""
    for form in (HERMES, LLAMA, MISTRAL):
        content, calls = read(list(text), form)
        if not calls:
            assert content == text


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<tool", "[TOOL", "<|py"),
    *("{", "}", "[", "]", ", ", ";", " ", "\n", "  \t", "\u00a0", "text", '"', "\\", "1"),
    *('{"name": "f"}', '{"name": "x"}', '{"name": "g", "arguments": {"a": "}"}}', '{"name": "f'),
    *('{"name": "f", "parameters": {"a": [1]}}', '"arguments": ', '{"a": "b"}'),
]


@given(
    st.sampled_from([HERMES, LLAMA, MISTRAL]),
    st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join),
    st.lists(st.integers(0, 200), max_size=6),
)
@settings(max_examples=200)
def test_marks_and_fragments_lose_nothing(form: CallForm, text: str, cuts: list[int]) -> None:
    """Guards text that is almost a call: cuts change nothing, and no character is lost.

    What calls leave is content: nothing that is not in the text, in its order.
    """
    content, calls = whole = read([text], form)
    assert read(list(text), form) == whole
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert read([text[start:end] for start, end in pairwise(places)], form) == whole
    if not calls:
        assert content == text
    rest = iter(text)
    assert all(character in rest for character in content)


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL])
def test_space_without_end_is_looked_at_once(form: CallForm) -> None:
    """Guards the event loop: a model that writes space for long is no work for us."""
    assert read(["a", *" " * 3_000, "b"], form) == (f"a{' ' * 3_000}b", [])
    for begun in ("", "a"):
        check_linear(AnswerForm(calling=Calling(form=form, names=("f",))), begun, " ")


def test_one_call_where_only_one_is_wanted() -> None:
    """Guards `parallel_tool_calls: false`."""
    text = '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call> more'
    assert read([text], HERMES, parallel=False) == ("", [("f", "{}")])


def test_enforced_calls_have_no_mark() -> None:
    """Guards formats whose mark is a control token: the text is calls from its beginning."""
    assert read(['[{"name": "f", ', '"arguments": {"a": 1}}]'], MISTRAL, starts_inside=True) == (
        "",
        [("f", '{"a": 1}')],
    )
    assert read(['{"name": "f"}'], LLAMA, starts_inside=True) == ("", [("f", "{}")])


def test_arguments_are_passed_on_while_they_are_written() -> None:
    """Guards the use of streaming calls at all."""
    parser = parser_of(Calling(form=HERMES, names=("f",)))
    parser.push('<tool_call>{"name": "f", "arguments": {"a": "lo')
    part = {"index": 0, "function": {"arguments": "ng te"}}
    assert parser.push("ng te") == [{"tool_calls": [part]}]


@pytest.mark.parametrize(
    ("form", "inside", "text", "calls"),
    [
        (HERMES, False, "<tool_call>", []),
        (HERMES, False, "<tool_c", []),
        (HERMES, False, '<tool_call>\n{"name": "', []),
        (HERMES, False, '<tool_call>\n{"name": "f", "arguments": {"a', [("f", '{"a')]),
        (HERMES, False, '<tool_call>{"name": "f"}\n</tool_call>\n<tool_', [("f", "{}")]),
        (HERMES, False, '<tool_call>{"name": "f"}\n</tool', [("f", "{}")]),
        (HERMES, True, '{"name', []),
        (MISTRAL, True, '[{"name": "f"}, {"na', [("f", "{}")]),
        (MISTRAL, True, "[", []),
        (LLAMA, True, '{"name": "', []),
    ],
)
def test_a_call_that_was_cut_off_is_no_content_where_only_calls_can_be(
    form: CallForm, inside: bool, text: str, calls: list[tuple[str, str]]
) -> None:
    """Guards enforced calls: no markup is ever passed on as an answer, however it is cut."""
    for parts in ([text], list(text)):
        assert read(parts, form, starts_inside=inside, is_enforced=True) == ("", calls)
