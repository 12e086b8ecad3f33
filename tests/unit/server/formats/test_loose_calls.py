"""Tests of `jitney.server.formats.loose_calls`: arguments as Python or Gemma has them are JSON, or
are what the model wrote."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.server.formats.recorded import FAMILY, Message, form_of, read, said

MARKS = {
    "lfm2": ("<|tool_call_start|>[", "]<|tool_call_end|>"),
    "gemma": ("<|tool_call>call:", "<tool_call|>"),
}


def answered(call: str, family: str = "lfm2") -> Message:
    """What is read of one call, whole and character by character."""
    text = call.join(MARKS[family])
    form = form_of(FAMILY[family])
    found = read([text], form)
    assert read(list(text), form) == found
    return found


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"x" "y"', "xy"),
        ("'x' \"y\"\n  'z'", "xyz"),
        ('"x" ""', "x"),
        ('""', ""),
        ('"""x"""', "x"),
        ("'''it's\n\"so\"'''", 'it\'s\n"so"'),
        ('""""""', ""),
        (r'"""a\"b"""', 'a"b'),
        (r"r'x\d'", r"x\d"),
        (r"R'''\''''", r"\'"),
        ("b'x' u'y' f\"z\"", "xyz"),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("+3", 3),
        (".5", 0.5),
        ("-5.", -5.0),
        ("1e2", 100.0),
        ("007", "007"),
        ("\u0661\u0662", "\u0661\u0662"),
        ("nan", "nan"),
        ("1e999", "1e999"),
        ("2024-01-01", "2024-01-01"),
        ("{'a' 'b': 1, 2: (3,),}", {"ab": 1, "2": [3]}),
        ("[\n]", []),
        ("{}", {}),
    ],
)
def test_spellings_of_a_value(written: str, value: Any) -> None:
    """Guards tools: the value is the one that Python has, or its text."""
    found = answered(f"weather(city={written}, days=2)")
    ((_, arguments),) = found.calls
    assert json.loads(arguments) == {"city": value, "days": 2}
    assert not found.content


@pytest.mark.parametrize(
    "call", ["weather(1, 2)", 'weather("Oslo")', "weather(city)", "weather([1])", "weather(,)"]
)
def test_a_value_where_a_key_is_due_is_no_call(call: str) -> None:
    """Guards callers: no tool is run with arguments that nobody named."""
    text = call.join(MARKS["lfm2"])
    assert answered(call) == said(text)
    quoted = '<|tool_call>call:weather{<|"|>Oslo<|"|>}<tool_call|>'
    assert read(list(quoted), form_of(FAMILY["gemma"])) == said(quoted)


@pytest.mark.parametrize(
    ("family", "call", "arguments"),
    [
        ("lfm2", "weather(city='Oslo', 2)", '{"city": "Oslo", "2")'),
        ("lfm2", "weather(city='Oslo', 'x y')", '{"city": "Oslo", "x y")'),
        ("lfm2", "weather(city=New York, days=')')", '{"city": "New" York, days=\')\')'),
        ("lfm2", "weather(city=1 'x' [(2)], days=3)", "{\"city\": 1 'x' [(2)], days=3)"),
        ("lfm2", "weather(near={1, 2})", '{"near": {"1", 2})'),
        ("lfm2", "weather(city=)", '{"city": )'),
        ("lfm2", "weather(city=='Oslo')", "{\"city\": ='Oslo')"),
        ("lfm2", "weather(days=1,, city=2)", '{"days": 1, , city=2)'),
        ("gemma", 'weather{days:1 <|"|>a}b<|"|>}', '{"days": 1 <|"|>a}b<|"|>}'),
    ],
)
def test_what_is_no_value_is_passed_on_as_it_is(family: str, call: str, arguments: str) -> None:
    """Guards the rule of arguments: from the mistake on they are the text of the model, so no JSON
    reader takes them for something else."""
    assert answered(call, family) == said("", ("weather", arguments))
    with pytest.raises(ValueError, match="char"):
        json.loads(arguments)


FRAGMENTS = [
    *("weather(", "now()", "city", "=", ":", ",", " ", "\n", "{", "}", "[", "]", "(", ")"),
    *("'", '"', '"""', "'''", "\\", "r'", "'x'", '"y"', "1", "-2.5", "0x1F", "True", "e", "é"),
    *('<|"|>', "weather{", "call:", "days=1", "near=[", "</s>"),
]


def mistake_in(arguments: str) -> int | None:
    """Where the text stops being JSON; None for a whole object."""
    try:
        return None if isinstance(json.loads(arguments), dict) else 0
    except json.JSONDecodeError as error:
        # A string that was cut off is reported at its beginning.
        return len(arguments) if error.msg.startswith("Unterminated string") else error.pos


@given(st.sampled_from(sorted(MARKS)), st.lists(st.sampled_from(FRAGMENTS), max_size=16))
@settings(max_examples=750)
def test_arguments_are_json_or_the_text_of_the_model(family: str, parts: list[str]) -> None:
    """Guards the rule for any text: JSON, or JSON and from the mistake on the text itself; where
    the answer ends inside a call, the beginning of one of them."""
    brackets = "(", ")"
    if family == "gemma":
        brackets = "{", "}"
    call = "".join(parts).join(("weather" + brackets[0], brackets[1]))
    text = call.join(MARKS[family])
    for _, arguments in answered(call, family).calls:
        mistake = mistake_in(arguments)
        assert mistake is None or arguments[mistake:] in text, arguments


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["city", "days", "near"]), VALUES, min_size=1))
def test_what_python_writes_is_read(values: dict[str, Any]) -> None:
    """Guards the table of spellings: any arguments, as Python itself writes them."""
    call = ", ".join(f"{name}={value!r}" for name, value in values.items())
    ((name, arguments),) = answered(f"weather({call})").calls
    assert (name, json.loads(arguments)) == ("weather", values)
