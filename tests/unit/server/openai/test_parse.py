"""Tests of `jitney.server.openai.parse`: JSON from strangers."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.server.error_object import Refusal
from jitney.server.limits import CONTAINERS_MAX, DEPTH_MAX, OBJECT_KEYS_MAX, VALUES_MAX
from jitney.server.openai.parse import parse_object

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.text(), JSON_VALUES), st.booleans())
def test_what_json_writes_is_read_back(value: dict[str, Any], is_ascii: bool) -> None:
    """Guards honest bodies: every object comes through as it was."""
    assert parse_object(json.dumps(value, ensure_ascii=is_ascii).encode()) == value


@given(st.binary(max_size=200))
def test_bytes_are_an_object_or_a_refusal(content: bytes) -> None:
    """Guards the server: nothing else comes out, whatever goes in."""
    status = 200
    try:
        assert isinstance(parse_object(content), dict)
    except Refusal as refusal:
        status = refusal.status
    assert status in (200, 400)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_has_a_limit(opening: str) -> None:
    """Guards the stack, one level to either side."""
    closing = "]" if opening == "[" else "}"

    def nested(depth: int) -> bytes:
        inner = opening * depth + "1" + closing * depth
        return b'{"x": ' + inner.encode() + b"}"

    assert parse_object(nested(DEPTH_MAX - 1))
    with pytest.raises(Refusal, match="nested"):
        parse_object(nested(DEPTH_MAX))


def test_keys_have_a_limit() -> None:
    """Guards against objects made to be slow."""
    assert len(parse_object(json.dumps(dict.fromkeys(map(str, range(OBJECT_KEYS_MAX)))).encode()))
    with pytest.raises(Refusal, match="keys"):
        parse_object(json.dumps(dict.fromkeys(map(str, range(OBJECT_KEYS_MAX + 1)))).encode())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{} {}", b'{"a": NaN}', b'{"a": 1e400}', b'{"a": 1, "a": 1}', b"\xff"],
)
def test_what_is_wrong_is_refused(content: bytes) -> None:
    """Guards strictness."""
    with pytest.raises(Refusal) as refused:
        parse_object(content)
    assert refused.value.code == "invalid_json"


def test_half_a_character_is_refused_and_a_whole_one_is_not() -> None:
    """Guards text that no encoding can carry."""
    assert parse_object(rb'{"a": "\ud83d\ude42"}') == {"a": "🙂"}
    with pytest.raises(Refusal, match="surrogate"):
        parse_object(rb'{"a": "\ude42"}')


def test_escapes_without_end_are_looked_at_once() -> None:
    """Guards the event loop: a reader that began anew at every mark would be here for hours."""
    content = b'{"a": "' + rb"[\"" * 2_000_000
    assert len(parse_object(content + b'"}')["a"]) == 4_000_000
    for ending in (b"", b"\\"):
        with pytest.raises(Refusal, match="Unterminated"):
            parse_object(content + ending)


@given(st.text(alphabet='[{}]\\"a,: ', max_size=60))
def test_what_stands_in_strings_is_no_depth(text: str) -> None:
    """Guards the count of levels: marks and escapes in a string change nothing outside of it."""
    inner = json.dumps(text)
    flat = f'{{"x": [{inner}, {"[" * (DEPTH_MAX - 2)}{inner}{"]" * (DEPTH_MAX - 2)}, {inner}]}}'
    assert parse_object(flat.encode())["x"][0] == text
    deep = f'{{"x": [{inner}, {"[" * (DEPTH_MAX - 1)}{inner}{"]" * (DEPTH_MAX - 1)}, {inner}]}}'
    with pytest.raises(Refusal, match="nested"):
        parse_object(deep.encode())


def test_lists_have_a_limit() -> None:
    """Guards memory: three bytes of a body may not become a hundred of ours without end."""
    assert parse_object(b'{"x": [' + b"[]," * (CONTAINERS_MAX - 2) + b"1]}")
    with pytest.raises(Refusal, match="lists and objects"):
        parse_object(b'{"x": [' + b"[]," * (CONTAINERS_MAX - 1) + b"1]}")


def test_strings_have_a_limit_of_their_own() -> None:
    """Guards everybody else: only a list of tokens needs more values than this, however large
    bodies may be."""
    texts = b'"",' * (VALUES_MAX - 1)
    assert parse_object(b'{"x": [' + texts + b"1]}", 2 * VALUES_MAX)
    with pytest.raises(Refusal, match=f"more than {VALUES_MAX} strings"):
        parse_object(b'{"x": [' + texts + b'""]}', 2 * VALUES_MAX)
    assert parse_object(b'{"x": [' + b"1," * VALUES_MAX + b"1]}", 2 * VALUES_MAX)


def test_other_threads_may_go_on_between_two_numbers() -> None:
    """Guards streams: json reads a list of numbers in one step, in which no other thread runs.

    Threads change only where Python code runs, so there must be a call for each number.
    """
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(event))
    try:
        parse_object(b'{"x": [' + b"1," * 999 + b"1.5]}")
    finally:
        sys.setprofile(None)
    assert calls.count("call") >= 1000
