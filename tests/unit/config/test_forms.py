"""Tests of `jitney.config.forms`: what each form reads, and what it refuses."""

from pathlib import Path

import pytest

from jitney.config.forms import (
    Form,
    Location,
    ModelPlace,
    Number,
    OneOf,
    Size,
    Switch,
    Whole,
    size_text,
)

WHOLE = Whole(-1, 10_000)
NUMBER = Number(0.0, 1.0)
ABOVE = Number(0.0, 1.0, above=True)
SIZE = Size(0, 2**50)


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
        (OneOf(("auto", "on")), "auto", "auto"),
        (OneOf(("auto", "on")), True, "on"),
        (OneOf(("auto", "on")), "AUTO ", "auto"),
        (OneOf(("bounded-stall",)), "Bounded_Stall", "bounded-stall"),
        (OneOf(("bounded-stall",)), "BoundedStall", "bounded-stall"),
        (Switch(), "Yes", True),
        (Switch(), "0", False),
        (Switch(), False, False),
        (Location(), "a/b.gguf", Path("a/b.gguf")),
        (Location(), Path("a"), Path("a")),
        (ModelPlace(), "owner/name:Q8_0", Path("owner/name:Q8_0")),
        (ModelPlace(), "./owner/name", Path("owner/name").absolute()),
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
        (OneOf(("auto", "on")), False),
        (OneOf(("auto", "on")), "a uto"),
        (OneOf(("auto", "on")), ["auto"]),
        (Switch(), 1),
        (Switch(), "maybe"),
        (Location(), ""),
        (Location(), 5),
        (Location(), "a\0b"),
        (Location(), "~nobody-has-this-name/x"),
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
