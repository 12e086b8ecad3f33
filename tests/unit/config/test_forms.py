"""Tests of `jitney.config.forms`: what each form reads, and what it refuses."""

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
    size_text,
    whole_number,
)

WHOLE = whole_number(-1, 10_000)
NUMBER = number(0.0, 1.0)
ABOVE = number(0.0, 1.0, above=True)
SIZE = byte_size(0, 2**50)


@pytest.mark.parametrize(
    ("form", "given", "value"),
    [
        (WHOLE, 7, 7),
        (WHOLE, " 1_000 ", 1000),
        (WHOLE, "-1", -1),
        (NUMBER, "0.5", 0.5),
        (NUMBER, 1, 1.0),
        (SIZE, 0, 0),
        (SIZE, "1073741824", 2**30),
        (SIZE, "2GiB", 2**31),
        (SIZE, "512 mb", 512_000_000),
        (SIZE, "1.5KiB", 1536),
        (one_of(("auto", "on")), "auto", "auto"),
        (one_of(("auto", "on")), True, "on"),
        (one_of(("auto", "on")), "AUTO ", "auto"),
        (one_of(("bounded-stall",)), "Bounded_Stall", "bounded-stall"),
        (one_of(("bounded-stall",)), "BoundedStall", "bounded-stall"),
        (SWITCH, "Yes", True),
        (SWITCH, "0", False),
        (SWITCH, False, False),
        (PATH, "a/b.gguf", Path("a/b.gguf")),
        (PATH, Path("a"), Path("a")),
        (MODEL, "owner/name:Q8_0", Path("owner/name:Q8_0")),
        (MODEL, "./owner/name", Path("owner/name").absolute()),
    ],
)
def test_a_form_reads_what_people_write(form: Form, given: object, value: object) -> None:
    """Guards every spelling that the reference page promises."""
    read = form.read(given)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("form", "given"),
    [
        (WHOLE, True),
        (WHOLE, 1.0),
        (WHOLE, "1.0"),
        (WHOLE, "٣"),
        (WHOLE, "1__0"),
        (WHOLE, "9" * 5000),
        (WHOLE, -2),
        (WHOLE, 10_001),
        (WHOLE, None),
        (NUMBER, "nan"),
        (NUMBER, float("nan")),
        (NUMBER, "inf"),
        (NUMBER, "-0.1"),
        (NUMBER, 1.1),
        (NUMBER, True),
        (NUMBER, ""),
        (ABOVE, 0),
        (SIZE, "2G"),
        (SIZE, "-1GiB"),
        (SIZE, "GiB"),
        (SIZE, "1e9"),
        (SIZE, 1.5),
        (SIZE, "9999999TiB"),
        (one_of(("auto", "on")), False),
        (one_of(("auto", "on")), "a uto"),
        (one_of(("auto", "on")), ["auto"]),
        (SWITCH, 1),
        (SWITCH, "maybe"),
        (or_none(SWITCH), "maybe"),
        (PATH, ""),
        (PATH, 5),
        (PATH, "a\0b"),
        (PATH, "~nobody-has-this-name/x"),
    ],
)
def test_a_form_refuses_what_it_would_have_to_guess(form: Form, given: object) -> None:
    """Guards against clamping, and against Python's lenient conversions."""
    with pytest.raises(ValueError):
        form.read(given)


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (2**30, "1GiB"), (1536, "1536")])
def test_a_size_in_words_reads_back(count: int, text: str) -> None:
    """Guards the defaults on the reference page."""
    assert size_text(count) == text
    assert SIZE.read(text) == count
