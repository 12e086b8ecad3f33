"""Tests of `jitney.server.formats`: a family's answers are read the same however they are cut."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.core.backend import Vocabulary
from jitney.server.formats.answer_families import FAMILIES, family_of, model_format
from jitney.server.formats.answer_forms import AnswerForm
from jitney.server.formats.answer_parser import AnswerParser
from jitney.server.formats.argument_values import types_of
from tests.unit.server.formats.counted import check_linear
from tests.unit.server.formats.recorded import FAMILY, RECORDED, Message, Recorded, form_of, read

NAMES = sorted(FAMILY)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: f"{each.family}:{each.text[:24]!r}")
def test_recorded_answers_cut_at_every_character(recorded: Recorded) -> None:
    """Guards every family: whole, in two parts at each place, and character by character."""
    form = form_of(FAMILY[recorded.family], is_thinking=recorded.is_thinking)
    text = recorded.text
    assert read([text], form) == recorded.message
    assert read(list(text), form) == recorded.message
    for place in range(len(text)):
        assert read([text[:place], text[place:]], form) == recorded.message


def test_every_family_has_a_recorded_answer_with_a_call() -> None:
    """Guards the table: a row that nobody recorded is a promise without a proof."""
    assert {each.family for each in RECORDED if each.message.calls} == {*FAMILY} - {"plain"}


FRAGMENTS = [
    *sorted({mark for family in FAMILIES for mark in form_of(family).marks}),
    *("<thi", "</think", "[TOOL_", "[CALL_ID]", "```json", "<|chan", " to=functions.now", "call:"),
    *("<function=", "now", "weather", ">", "</function>", "<parameter=", "city", "</parameter>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "functions.now:0", "<|call|>"),
    *("{", "}", "[", "]", "(", ")", "'", '"', "\\", "=", ":", ",", " ", "\n", "1", "e", "é"),
    *('{"name": "now"}', '"arguments": ', "now()", "final", "analysis"),
]


@given(
    st.sampled_from(NAMES),
    st.booleans(),
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    st.lists(st.integers(0, 300), max_size=6),
)
@settings(max_examples=300)
def test_cuts_change_nothing(name: str, is_thinking: bool, text: str, cuts: list[int]) -> None:
    """Guards streams: whatever a model writes, any cuts add up to the same message."""
    form = form_of(FAMILY[name], is_thinking=is_thinking)
    whole = read([text], form)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert read([text[start:end] for start, end in pairwise(places)], form) == whole
    assert read(list(text), form) == whole
    if not whole.calls and not FAMILY[name].has_channels:
        _check_complete(text, whole, form)


def _check_complete(text: str, whole: Message, form: AnswerForm) -> None:
    """Nothing but marks of reasoning and the space around them is lost, and nothing is added."""
    assert form.reasoning is not None
    kept = "".join((whole.reasoning + whole.content).split())
    rest = "".join(text.split())
    begun = [rest, rest.removeprefix("".join(form.reasoning.opening.split()))]
    assert kept in (*begun, *(each.replace(form.reasoning.closing, "", 1) for each in begun))


@given(st.sampled_from(NAMES), st.booleans(), st.text(max_size=60))
def test_no_text_is_too_strange(name: str, is_thinking: bool, text: str) -> None:
    """Guards the parser: plain text comes back whole, whatever its characters are."""
    found = read(list(text), form_of(FAMILY[name], is_thinking=is_thinking))
    assert "".join((found.reasoning + found.content).split()) == "".join(text.split())


BEGUN = {
    "hermes": ['<tool_call>{"name": "now", "arguments": {"a": "', '<tool_call>{"name": "'],
    "qwen-coder": ["<tool_call>\n<function=weather>\n<parameter=near>\n"],
    "glm": ["<tool_call>weather<arg_key>near</arg_key><arg_value>", "<tool_call>weather<arg_key>"],
    "llama": ['{"name": "now", "parameters": [', '{"name": "now", "parameters": 1'],
    "mistral": ["[TOOL_CALLS]now[ARGS]{", '[TOOL_CALLS][{"name": "now"}'],
    "gpt-oss": ["<|channel|>commentary to=functions.now<|message|>{", "<|channel|>"],
    "gemma": ['<|tool_call>call:now{a:<|"|>', "<|tool_call>call:now{a:1 b"],
    "pythonic": ["[now(a='", "[now(a=1 b", '[now(a="""', "[now(a=b"],
}
"""What is open when a long text comes."""


@pytest.mark.parametrize("name", NAMES)
def test_long_answers_are_looked_at_once(name: str) -> None:
    """Guards the event loop: neither space nor a long value makes the work grow with its square."""
    check_linear(form_of(FAMILY[name], is_thinking=True), "", " ")
    for begun, part in product(("", *BEGUN.get(name, ())), ("[1, 2]</", " ", "\\", "<")):
        check_linear(form_of(FAMILY[name]), begun, part)


TEMPLATES = {
    "hermes": "{% if tools %}<tool_call>{% endif %}<think></think>",
    "qwen-coder": "{{ tools }}<tool_call>\n<function=f>\n<parameter=p>",
    "glm": "{{ tools }}<tool_call>{name}\n<arg_key>{k}</arg_key>",
    "llama": "{{ tools }}<|python_tag|>",
    "mistral": "[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]",
    "gpt-oss": "{{ tools }}<|start|>assistant<|channel|>analysis<|message|><|end|>",
    "gemma": "{{ tools }}<|tool_call>call:<tool_call|>",
    "functiongemma": "{{ tools }}<start_function_call>call:",
    "deepseek": "{{ tools }}<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "kimi": "{{ tools }}<|tool_calls_section_begin|>",
    "lfm2": '{{ "List of tools: " }}{{ tools }}',
    "granite": "{{ tools }} respond only with <|tool_call|>",
    "nemotron": "{{ tools }}<TOOLCALL>[]</TOOLCALL>",
    "seed": "{{ tools }}<seed:tool_call>\n<function=f>\n<parameter=p>",
    "pythonic": "{{ tools }}<|python_start|>",
    "plain": "{{ messages }}",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_family_follows_from_the_template(name: str) -> None:
    """Guards the table: every family is recognised, and by its own words."""
    assert family_of(TEMPLATES[name], knows_tools=True).name == name


def test_parameters_tell_llama_only_beside_tools() -> None:
    """Guards templates of Llama 3 that name no mark."""
    source = '{"name": x, "parameters": y}'
    assert family_of(source, knows_tools=True).name == "llama"
    assert family_of(source, knows_tools=False).name == "plain"


def test_what_a_model_has_of_its_family() -> None:
    """Guards the marks: reasoning only where the template names it, control tokens by name."""
    vocabulary = Vocabulary(
        pieces=(b"a", b"</think>", b"<tool_call>"), control=frozenset({2}), eos_tokens=(0,)
    )
    thinks = model_format("<think></think><tool_call>", vocabulary, knows_tools=True)
    assert thinks.reasoning is not None
    assert thinks.tokens == {"</think>": 1, "<tool_call>": 2}
    assert thinks.shows_control(form_of(thinks.family).marks)
    assert model_format("<tool_call>", vocabulary, knows_tools=True).reasoning is None


def test_kimi_gets_its_own_ids_back() -> None:
    """Guards ids that the model itself counts."""
    texts = [each.text for each in RECORDED if each.family == "kimi"]
    assert read([texts[0]], form_of(FAMILY["kimi"])).ids == [
        "functions.weather:0",
        "functions.now:1",
    ]
    written = "[TOOL_CALLS]now[CALL_ID]abc123DEF[ARGS]{}"
    assert read([written], form_of(FAMILY["mistral"])).ids == ["abc123DEF"]


def test_strings_are_passed_on_while_they_are_written() -> None:
    """Guards the use of streaming a file that a model writes between tags."""
    parser = AnswerParser(form_of(FAMILY["qwen-coder"]))
    parser.push("<tool_call>\n<function=edit.file>\n<parameter=text>\nfirst")
    assert parser.push(" second\nthi") == [
        {"tool_calls": [{"index": 0, "function": {"arguments": " second\\nthi"}}]}
    ]


def test_reasoning_that_nobody_reads() -> None:
    """Guards `include_reasoning: false`."""
    form = form_of(FAMILY["hermes"], is_thinking=True)
    hidden = AnswerForm(reasoning=form.reasoning, is_thinking=True, includes_reasoning=False)
    assert read(list("Hm.</think>Hi."), hidden) == Message("", "Hi.")


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": "\\ud800"}</tool_call>'),
        ("qwen-coder", "<tool_call><function=now><parameter=a>[\"\\ud800\"]</parameter>"
         "</function></tool_call>"),
    ],
)  # fmt: skip
def test_half_a_character_is_replaced(family: str, text: str) -> None:
    """Guards stores and sockets: no encoding has halves of a pair, and JSON can write them."""
    message = read([text], form_of(FAMILY[family], is_thinking=False))
    assert "\N{REPLACEMENT CHARACTER}" in str(message)
    str(message).encode()


def test_each_pointer_of_a_schema_is_followed_once() -> None:
    """Guards the event loop: levels of pointers that all lead to the next level."""
    count, depth = 300, 3
    definitions: dict[str, object] = {
        f"level{at}": {"anyOf": [{"$ref": f"#/$defs/level{at + 1}"}] * count} for at in range(depth)
    }
    definitions[f"level{depth}"] = {"type": "integer"}
    root = {"$defs": definitions}
    assert types_of({"$ref": "#/$defs/level0"}, root) == {"integer"}
