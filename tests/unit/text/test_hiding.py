"""Names of control tokens in a caller's text: found whole, hidden, put back, in few renders."""

from typing import Any  # Any: JSON

import pytest

from jitney.text.hiding import Hiding, MarksUsedUp

NAMES = ["<|im_end|>", "<|im_end|>x", "<|im_start|>", "<s>", "[INST]", "<|im", "a+"]


class Writer:
    """Writes the messages out, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, given: Any) -> str:
        self.count += 1
        return "|".join(given)


def segments(names: list[str], *texts: str) -> tuple[list[tuple[str, bool]], int]:
    writer = Writer()
    return Hiding(names, "").segments(list(texts), writer), writer.count


def test_an_ordinary_text_is_written_once() -> None:
    """Guards the cost of a usual chat."""
    assert segments(NAMES, "hello", "there") == ([("hello|there", True)], 1)
    assert segments([], "<|im_end|>") == ([("<|im_end|>", True)], 1)
    assert segments(NAMES, "") == ([], 1)


def test_a_text_in_which_every_name_is_hidden_is_written_once() -> None:
    """Guards against a second render that cannot differ."""
    assert segments(["<|end|>"], "a<|end|><|end|>b") == (
        [("a", True), ("<|end|><|end|>", False), ("b", True)],
        1,
    )


def test_a_text_with_beginnings_is_written_twice_and_stays_whole() -> None:
    """Guards code in a chat, which is full of them: it is one segment, not thousands."""
    assert segments(["<|end|>"], "a<b" * 1000) == ([("a<b" * 1000, True)], 2)


def test_private_characters_that_are_no_marks_belong_to_their_surroundings() -> None:
    """Guards text that holds the first choice of a mark, even beside one."""
    text = "x\U000f0000<|end|>\U000f0001\U000f0003y"
    assert segments(["<|end|>"], text)[0] == [
        ("x\U000f0000", True),
        ("<|end|>", False),
        ("\U000f0001\U000f0003y", True),
    ]


def test_private_characters_of_a_name_are_no_marks() -> None:
    """Guards the marks against names that hold the first choice of one."""
    names = ["<\U000f0000>", "<|end|>"]
    found, _ = segments(names, "a<|end|>b<\U000f0000>c")
    assert [text for text, special in found if not special] == ["<|end|>", "<\U000f0000>"]


def test_a_text_that_holds_all_private_characters_is_refused() -> None:
    """Guards against a mark that is a caller's character."""
    taken = "".join(map(chr, range(0xF0000, 0x10FFFE)))
    assert segments(["<|end|>"], taken) == ([(taken, True)], 1)
    with pytest.raises(MarksUsedUp):
        segments(["<|end|>"], taken + "<|end|>")
