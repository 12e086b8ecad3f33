"""Text: whatever the split, the pieces join to what the whole would be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.core.backend import Vocabulary
from jitney.core.stops import StopTable
from jitney.text.detokenizer import Detokenizer
from jitney.text.stop import StopMatcher
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode
from tests.templates_for_tests import template_here

VOCABULARY = byte_vocabulary()
TEMPLATE = template_here(
    "{% for m in messages %}<|user|>{{ m.content | trim | replace('xy', '') }}<|end|>{% endfor %}",
    VOCABULARY,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=5), min_size=2, max_size=12), st.data(), st.booleans())
def test_any_tokens_join_to_the_decoding_of_the_whole(
    pieces: list[bytes], data: st.DataObject, skip_special: bool
) -> None:
    """Guards broken and split UTF-8 of every kind."""
    vocabulary = Vocabulary(pieces=tuple(pieces), control=frozenset({0}), eos_tokens=(0,))
    tokens = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=30))
    detokenizer = Detokenizer(vocabulary, skip_special)
    text = "".join([*(detokenizer.push(token) for token in tokens), detokenizer.flush()])
    kept = (pieces[token] for token in tokens if token or not skip_special)
    assert text == b"".join(kept).decode(errors="replace")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.booleans())
def test_encoding_any_text_round_trips_without_half_characters(text: str, special: bool) -> None:
    """Guards invariant 5 on real splits: each push is text that stands on its own."""
    detokenizer = Detokenizer(VOCABULARY, skip_special=False)
    pushed = [detokenizer.push(token) for token in encode(text, special=special)]
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pushed)
    assert "".join(pushed) + detokenizer.flush() == text


def naive(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The first place at which the text so far ends with a stop string, the longest such."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    st.booleans(),
)
def test_stop_strings_are_found_as_in_the_whole_text(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    """Guards every split and overlap; and that nothing shown could still have been cut."""
    matcher = StopMatcher(StopTable(tuple(stops)), include)
    expected, expected_match = naive("".join(pieces), tuple(stops), include)
    shown = ""
    matched = None
    for piece in pieces:
        result = matcher.push(piece)
        shown += result.text
        matched = matched or result.matched
        assert expected.startswith(shown)
    shown += matcher.flush()
    assert (shown, matched) == (expected, expected_match)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ["<|end|>", "<|", "end|>", "<", "|", ">", "xy", "user", " ", "\U000f0000"]
            ),
            max_size=8,
        ).map("".join),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_no_content_makes_a_control_token(contents: list[str], continues: bool) -> None:
    """Guards forged control tokens, whole, in parts, and put together by the template."""
    segments = TEMPLATE.render(
        [{"role": "user", "content": content} for content in contents],
        False,
        continue_final_message=continues,
    )
    tokens = [
        token
        for text, is_special in segments
        for token in encode(text, special=is_special)
        if token in VOCABULARY.control
    ]
    turn = encode("<|user|><|end|>", special=True)
    assert tokens == (turn * len(contents))[: -1 if continues else None]
    expected = "".join(f"<|user|>{c.strip().replace('xy', '')}<|end|>" for c in contents)
    whole = "".join(text for text, _ in segments)
    assert whole + "<|end|>" * continues == expected
