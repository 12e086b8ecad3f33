"""Stop strings as a table: how large it is, and how much work it is to make and to follow."""

import sys

import pytest

from jitney.core import limits
from jitney.core.stops import StopTable

LENGTH = limits.STOP_STRING_CHARACTERS_MAX
COUNT = limits.STOP_STRINGS_MAX
LETTERS = "bcdefghijklmnopq"
HOSTILE = {
    "one letter, and another at the end": tuple("a" * (LENGTH - 1) + end for end in LETTERS),
    "beginnings of each other": tuple("a" * (LENGTH - at) for at in range(COUNT)),
    "nothing shared": tuple(first + "a" * (LENGTH - 1) for first in LETTERS),
    "two letters in turn": tuple(("ab" * LENGTH)[: LENGTH - 1] + end for end in LETTERS),
    "wide characters": tuple(chr(0x1F600 + at) * LENGTH for at in range(COUNT)),
}


class Looks:
    """Counts how often a table is asked what follows a state: everything it does is that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        child = StopTable._child

        def counted(table: StopTable, state: int, letter: int) -> int:
            self.count += 1
            return child(table, state, letter)

        monkeypatch.setattr(StopTable, "_child", counted)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """A count of the work from here on."""
    return Looks(monkeypatch)


@pytest.mark.parametrize("stops", HOSTILE.values(), ids=HOSTILE)
def test_a_table_is_made_in_proportion_to_its_characters(
    stops: tuple[str, ...], looks: Looks
) -> None:
    """Guards every stream against a table that takes seconds to make."""
    characters = sum(map(len, stops))
    table = StopTable(stops)
    assert len(table) <= characters + 1
    assert looks.count <= 3 * characters


@pytest.mark.parametrize("stops", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("text", ["a" * 5000, ("a" * (LENGTH - 2) + "z") * 20, "ab" * 2500])
@pytest.mark.parametrize("piece", [1, 7, 5000])
def test_a_text_is_followed_in_proportion_to_its_characters(
    stops: tuple[str, ...], text: str, piece: int, looks: Looks
) -> None:
    """Guards the tick: a token costs what its text costs, whatever the stop strings are."""
    table, state = StopTable(stops), 0
    looks.count = 0
    for start in range(0, len(text), piece):
        state, _ = table.follow(state, text[start : start + piece])
        if table.matched(state):
            state = 0
    assert looks.count <= 2 * len(text)


@pytest.mark.parametrize("stops", HOSTILE.values(), ids=HOSTILE)
def test_a_table_is_not_much_larger_than_its_strings(stops: tuple[str, ...]) -> None:
    """Guards memory: as many requests may wait as the queue holds, each with a table."""
    table = StopTable(stops)
    size = sum(map(sys.getsizeof, (vars(table), *vars(table).values())))
    assert size <= 32 * sum(map(len, stops))


def test_text_without_a_first_character_is_not_looked_at(looks: Looks) -> None:
    """Guards the way of almost every token."""
    table = StopTable(("###", "\n\n"))
    looks.count = 0
    assert table.follow(0, "an ordinary piece of text") == (0, 25)
    assert looks.count == 0
