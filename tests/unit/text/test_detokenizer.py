"""Tokens to text: whole characters, control tokens, the end."""

from jitney.core.backend import Vocabulary
from jitney.text.detokenizer import Detokenizer

VOCABULARY = Vocabulary(
    pieces=(b"a", b"\xf0\x9f", b"\x99\x82", b"\xff", b"<end>", b" caf\xc3", b"\xa9"),
    control=frozenset({4}),
    eos_tokens=(4,),
)


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    """Guards invariant 5: no half characters in a delta."""
    detokenizer = Detokenizer(VOCABULARY, skip_special=True)
    assert [detokenizer.push(token) for token in (5, 6, 1, 2, 0)] == [" caf", "é", "", "🙂", "a"]
    assert detokenizer.flush() == ""


def test_control_tokens_are_skipped_or_named() -> None:
    """Guards skip_special_tokens; skipping must not break a character around it either."""
    assert Detokenizer(VOCABULARY, skip_special=False).push(4) == "<end>"
    skipping = Detokenizer(VOCABULARY, skip_special=True)
    assert [skipping.push(token) for token in (1, 4, 2)] == ["", "", "🙂"]


def test_bytes_that_never_become_a_character_are_replaced() -> None:
    """Guards models that emit broken UTF-8: the text goes on, and nothing is lost at the end."""
    detokenizer = Detokenizer(VOCABULARY, skip_special=True)
    assert detokenizer.push(3) == "\ufffd"
    assert detokenizer.push(1) == ""
    assert detokenizer.flush() == "\ufffd"


def test_a_token_beyond_the_vocabulary_gives_nothing() -> None:
    """Guards padded models, whose rows are longer than their list of tokens."""
    assert Detokenizer(VOCABULARY, skip_special=True).push(7) == ""
