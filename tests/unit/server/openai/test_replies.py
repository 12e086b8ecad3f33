"""Tests of `jitney.server.openai.replies`: what every reply begins with, and how it is encoded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.server.openai import replies
from jitney.server.openai.replies import dump_json, dump_slices, fingerprint
from jitney.tokenizers.byte_tokenizer import byte_vocabulary


def test_the_fingerprint_tells_whether_texts_are_equal() -> None:
    """Guards auditors: where a text may differ from run to run, they can see it."""
    vocabulary = byte_vocabulary()
    equal = fingerprint("m", vocabulary, batch_invariant=True)
    assert equal == fingerprint("m", vocabulary, batch_invariant=True)
    assert equal != fingerprint("m", vocabulary, batch_invariant=False)
    assert equal != fingerprint("n", vocabulary, batch_invariant=True)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda part: st.lists(part, max_size=80) | st.dictionaries(st.text(), part, max_size=6),
)


@given(JSON)
def test_it_is_what_is_written_in_one_go(value: object) -> None:
    """Guards replies: how they are encoded is nobody's business."""
    usual = json.dumps(value, allow_nan=False, separators=(",", ":"))
    assert dump_json(value) == dump_slices(value)
    assert json.dumps(json.loads(dump_json(value)), separators=(",", ":")) == usual


def test_no_piece_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards everybody else: nobody runs while a piece is encoded."""
    position = {"token": "a", "top_logprobs": [{"token": "b", "logprob": -1.0}] * 20}
    reply = {"choices": [{"logprobs": {"content": [position] * 600}}] * 2}
    longest = 0
    usual = replies.dump_json

    def measured(value: object) -> str:
        nonlocal longest
        text = usual(value)
        longest = max(longest, len(text))
        return text

    monkeypatch.setattr(replies, "dump_json", measured)
    assert dump_slices(reply) == json.dumps(reply, separators=(",", ":"))
    assert longest < 40_000


@given(st.text(st.sampled_from("aü\u0085\u2028\u2029\n\x1c\U0001f600")))
def test_json_is_on_one_line_for_every_reader(text: str) -> None:
    """Guards clients that split a stream with `splitlines`, and lines of results."""
    written = dump_json({text: [text]})
    assert len(written.splitlines()) == 1
    assert json.loads(written) == {text: [text]}
