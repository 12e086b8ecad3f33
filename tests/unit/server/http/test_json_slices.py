"""Tests of `jitney.server.http.json_slices`: the same JSON, encoded a little at a time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.server.http import json_slices
from jitney.server.http.json_slices import encode_json

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
    usual = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        expected = usual.encode()
    except UnicodeEncodeError:
        return
    assert encode_json(value) == expected


def test_no_piece_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards everybody else: nobody runs while a piece is encoded."""
    position = {"token": "a", "top_logprobs": [{"token": "b", "logprob": -1.0}] * 20}
    reply = {"choices": [{"logprobs": {"content": [position] * 3000}}] * 16}
    longest = 0
    usual = json_slices._dumped

    def measured(value: object) -> str:
        nonlocal longest
        text = usual(value)
        longest = max(longest, len(text))
        return text

    monkeypatch.setattr(json_slices, "_dumped", measured)
    assert encode_json(reply) == json.dumps(reply, separators=(",", ":")).encode()
    assert longest < 40_000
