"""Tests of `jitney.cli.terminal`: text is wrapped while it streams."""

from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from jitney.cli.terminal import Wrapper


def wrap(pieces: list[str], width: int) -> str:
    wrapper = Wrapper(width)
    return "".join([*map(wrapper.feed, pieces), wrapper.end()])


def test_lines_break_between_words() -> None:
    """Guards reading: a terminal by itself breaks in the middle of a word."""
    assert wrap(["The quick bro", "wn fox jumps"], 12) == "The quick\nbrown fox\njumps"


def test_a_word_longer_than_the_line_is_not_held_back_for_ever() -> None:
    """Guards streaming of addresses and of scripts that write no spaces."""
    wrapper = Wrapper(10)
    assert wrapper.feed("a" * 15) == "a" * 15


@example(["      a"], 4)
@given(st.lists(st.text(st.sampled_from("ab \n日🚌"), max_size=8), max_size=12), st.integers(4, 20))
def test_wrapping_keeps_every_word_and_does_not_depend_on_the_pieces(
    pieces: list[str], width: int
) -> None:
    """Guards the text: wrapping only ever touches spaces."""
    whole = "".join(pieces)
    wrapped = wrap(pieces, width)
    assert wrapped.split() == whole.split()
    if all(cell_len(word) < width for word in whole.split()):
        assert wrapped == wrap([whole], width)
        assert all(cell_len(line) <= width for line in wrapped.split("\n"))
