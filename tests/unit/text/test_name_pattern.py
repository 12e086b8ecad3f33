"""Patterns of many names: what they find, and that they do not try the names one by one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from jitney.text.hiding import names_pattern

NAMES = st.lists(st.text("ab<|>[ \n", min_size=1, max_size=6), min_size=1, max_size=12)


@given(NAMES, st.text("ab<|>[ \n", max_size=60))
def test_it_finds_what_trying_the_longest_first_finds(names: list[str], text: str) -> None:
    """Guards control tokens: a name that begins with another one is found whole."""
    longest_first = sorted(set(names), key=lambda name: (-len(name), name))
    expected = re.findall("|".join(map(re.escape, longest_first)), text)
    assert re.findall(names_pattern(names), text) == expected


def test_what_names_have_in_common_is_compared_once() -> None:
    """Guards everybody: 160 KB of `<` were 45 s of one pattern, in which no thread ran.

    Each beginning stands in the pattern once, however many names have it.
    """
    names = ["<s>", "[X]", *(f"<|reserved_{number}|>" for number in range(6000))]
    pattern = names_pattern(names)
    assert pattern.count("reserved") == 1
    assert pattern.count("<") == 1
    found = re.compile(pattern)
    assert all(found.fullmatch(name) for name in names)
    assert found.fullmatch("<|reserved_6000|>") is None


def test_names_within_names_may_be_of_any_depth() -> None:
    """Guards against a model whose names are beyond what the parser of patterns can do."""
    names = ["a" * length for length in range(1, 500)]
    assert re.findall(names_pattern(names), "a" * 700) == ["a" * 499, "a" * 201]
