"""Tests of `jitney.config.forms`: what each form reads, and what it refuses."""

from datetime import date
from pathlib import Path

import pytest

from jitney.config.forms import (
    MODEL,
    PATH,
    SWITCH,
    Form,
    byte_size,
    number,
    one_of,
    or_none,
    read_named,
    size_text,
    text_line,
    whole_number,
)
from jitney.errors import ConfigError

WHOLE = whole_number(-1, 10_000)
NUMBER = number(0.0, 1.0)
ABOVE = number(0.0, 1.0, above=True)
SIZE = byte_size(0, 2**50)


WORD = one_of(("auto", "on"))
STALL = one_of(("bounded-stall",))

READ: list[tuple[Form, dict[object, object]]] = [
    (WHOLE, {7: 7, " 1_000 ": 1000, "-1": -1}),
    (NUMBER, {"0.5": 0.5, 1: 1.0}),
    (SIZE, {0: 0, "1073741824": 2**30, "2GiB": 2**31, "512 mb": 512_000_000, "1.5KiB": 1536}),
    (WORD, {"auto": "auto", True: "on", "AUTO ": "auto"}),
    (STALL, {"Bounded_Stall": "bounded-stall", "BoundedStall": "bounded-stall"}),
    (SWITCH, {"Yes": True, "0": False, False: False}),
    (PATH, {"a/b.gguf": Path("a/b.gguf"), Path("a"): Path("a")}),
    (MODEL, {"owner/name:Q8_0": Path("owner/name:Q8_0"), "./a/b": Path("a/b").absolute()}),
]
REFUSED: list[tuple[Form, list[object]]] = [
    (WHOLE, [True, 1.0, "1.0", "٣", "1__0", "9" * 5000, -2, 10_001, None]),
    (NUMBER, ["nan", float("nan"), "inf", "-0.1", 1.1, True, ""]),
    (ABOVE, [0]),
    (SIZE, ["2G", "-1GiB", "GiB", "1e9", 1.5, "9999999TiB"]),
    (WORD, [False, "a uto", ["auto"]]),
    (SWITCH, [1, "maybe"]),
    (or_none(SWITCH), ["maybe"]),
    (PATH, ["", 5, "a\0b", "~nobody-has-this-name/x"]),
]


@pytest.mark.parametrize(
    ("form", "text", "value"), [(form, *pair) for form, pairs in READ for pair in pairs.items()]
)
def test_a_form_reads_what_people_write(form: Form, text: object, value: object) -> None:
    """Guards every spelling that the reference page promises."""
    read = form.read(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("form", "value"), [(form, value) for form, values in REFUSED for value in values]
)
def test_a_form_refuses_what_it_would_have_to_guess(form: Form, value: object) -> None:
    """Guards against clamping, and against Python's lenient conversions."""
    with pytest.raises(ValueError):
        form.read(value)


@pytest.mark.parametrize("value", [7, date(2024, 1, 1), "", "too long"])
def test_what_a_file_has_without_quotes_gets_a_hint(value: object) -> None:
    """Guards whoever reads of a text and sees one; on a command line quotes change nothing."""
    with pytest.raises(ConfigError) as refused:
        read_named(or_none(text_line(1, 5)), "host", value)
    hint = "a number or a date in quotes"
    assert (hint in str(refused.value)) == (not isinstance(value, str))


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (2**30, "1GiB"), (1536, "1536")])
def test_a_size_in_words_reads_back(count: int, text: str) -> None:
    """Guards the defaults on the reference page."""
    assert size_text(count) == text
    assert SIZE.read(text) == count
