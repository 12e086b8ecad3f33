"""Tests of `jitney.server.responses`: what a caller of a stream can read back."""

import json

from hypothesis import given
from hypothesis import strategies as st

from jitney.server.openai.replies import event


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_framed_is_read_back(value: dict[str, str]) -> None:
    """Guards the stream: no text of a model can end an event or begin another."""
    framed = event(value)
    assert framed.startswith(b"data: ")
    assert framed.endswith(b"\n\n")
    inner = framed[len(b"data: ") : -2]
    assert b"\n" not in inner
    assert b"\r" not in inner
    assert json.loads(inner) == value
