"""Foreign text that may be shown."""

import pytest

from jitney.text.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\nlines    and a tab"),
        ("\x1b[31mred\x1b]0;title\x07", "[31mred]0;title"),
        ("back\b\rspace\x00", "backspace"),
        ("left\u202eright", "leftright"),
        ("日本 🚌 👩\u200d🚀", "日本 🚌 👩\u200d🚀"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(text: str, shown: str) -> None:
    """Guards against a model that moves the cursor, retitles the window or turns text around."""
    assert printable(text) == shown
