"""Stop strings: what is held back, what matches, what follows a match."""

import pytest

from jitney.core.stops import StopTable
from jitney.text.stop import StopMatcher, StopResult


def test_text_passes_untouched_when_there_are_no_stop_strings() -> None:
    """Guards the common case."""
    matcher = StopMatcher(StopTable(()), include=False)
    assert matcher.push("anything") == StopResult("anything")
    assert matcher.flush() == ""


def test_the_beginning_of_a_stop_string_is_held_until_it_is_none() -> None:
    """Guards against leaking part of a stop string, and against swallowing what was none."""
    matcher = StopMatcher(StopTable(("###",)), include=False)
    assert matcher.push("a#") == StopResult("a")
    assert matcher.push("#b") == StopResult("##b")
    assert matcher.push("#") == StopResult("")
    assert matcher.flush() == "#"
    assert matcher.flush() == ""


@pytest.mark.parametrize(("include", "text"), [(False, "one"), (True, "one##")])
def test_a_match_ends_the_text_with_or_without_itself(include: bool, text: str) -> None:
    """Guards include_stop_str_in_output, and that nothing follows the end."""
    matcher = StopMatcher(StopTable(("##",)), include)
    pieces = [matcher.push(piece) for piece in ("one#", "# two", " three##")]
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.matched for piece in pieces] == [None, "##", None]
    assert matcher.flush() == ""
