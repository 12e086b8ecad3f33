"""Reads JSON from clients strictly: `parse_object`. Pure; any thread.

Refuses what is not exactly JSON (NaN, 1e999, bad UTF-8, half surrogate pairs), what readers may
understand in two ways (duplicate keys), and what is nested too deeply or too large.
"""

import json
import math
import re
from typing import Any, NoReturn

from jitney.server.error_object import Refusal
from jitney.server.limits import CONTAINERS_MAX, DEPTH_MAX, OBJECT_KEYS_MAX, VALUES_MAX

_STRINGS = re.compile(rb'"[^"]*+"?')
"""Strings without escapes, closed or not. Each match that begins succeeds, so no byte is read
twice."""

_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]")
_STEPS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_OTHERS = bytes(set(range(256)) - set(_STEPS) - set(b'",'))


def parse_object(
    content: bytes, values_max: int = VALUES_MAX
) -> dict[str, Any]:  # Any: a JSON value
    """The object in this body. Raises Refusal with status 400."""
    if not content.strip():
        _refuse("The body is empty; send a JSON object.")
    _check_form(content, values_max)
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=_number,
            parse_constant=_constant,
        )
    except UnicodeDecodeError:
        _refuse("The body is not text in UTF-8.")
    except json.JSONDecodeError as error:
        _refuse(f"The body is not valid JSON: {error.msg} at character {error.pos}.")
    except RecursionError:
        _refuse(f"The body is nested more than {DEPTH_MAX} deep.")
    except ValueError:
        # Python refuses to read whole numbers of thousands of digits.
        _refuse("The body holds a number that is too long.")
    if not isinstance(value, dict):
        _refuse("The body must be a JSON object.")
    if _SURROGATES.search(content):
        _check_surrogates(value)
    return value


def _check_form(content: bytes, values_max: int) -> None:
    """Check the size before the parser: it recurses, and everything else waits while it reads."""
    marks = content.translate(None, _OTHERS)
    is_short = len(marks) < min(values_max, VALUES_MAX)
    if is_short and marks.count(b"{") + marks.count(b"[") <= DEPTH_MAX:
        return  # it is within all bounds, even if nothing of it is inside strings
    if b"\\" in content:
        # Without escapes a quotation mark always ends a string; pairs of backslashes go first.
        plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
        marks = plain.translate(None, _OTHERS)
    if marks.count(b'"') > 2 * VALUES_MAX:
        _refuse(f"The body holds more than {VALUES_MAX} strings.")
    bare = _STRINGS.sub(b"", marks)
    if bare.count(b",") >= values_max:
        _refuse(f"The body holds more than {values_max} strings and numbers.")
    if bare.count(b"{") + bare.count(b"[") > CONTAINERS_MAX:
        _refuse(f"The body holds more than {CONTAINERS_MAX} lists and objects.")
    depth = 0
    for bracket in bare.translate(None, b","):
        depth += _STEPS[bracket]
        if depth > DEPTH_MAX:
            _refuse(f"The body is nested more than {DEPTH_MAX} deep.")


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        _refuse("The body holds half of a surrogate pair, which is no character.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > OBJECT_KEYS_MAX:
        _refuse(f"An object in the body has more than {OBJECT_KEYS_MAX} keys.")
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f"The key {key[:80]!r} stands twice in one object of the body.")
            seen.add(key)
    return found


def _whole_number(text: str) -> int:
    # As json would do it, but where a function of Python is called, other threads may go on.
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(f"The number {text[:40]} is too large.")
    return value


def _constant(text: str) -> NoReturn:
    _refuse(f"{text} is not a number in JSON.")


def _refuse(message: str) -> NoReturn:
    raise Refusal("invalid_json", message)
