"""JSON from strangers, read strictly: `parse_object`. Pure; any thread.

Refuses what is no JSON to the letter (NaN, 1e999, bad UTF-8, half surrogate pairs), what two
readers would understand in two ways (duplicate keys), and what is nested or wide beyond use.
"""

import json
import math
import re
from typing import Any, NoReturn

from jitney.server.errors import Refusal
from jitney.server.limits import CONTAINERS_MAX, DEPTH_MAX, OBJECT_KEYS_MAX

_TOKENS = re.compile(rb'"[^"]*+"?|[\[\]{}]')
"""Strings without escapes, closed or not, and brackets: whatever begins to match does match, so
that no byte is looked at twice."""

_STEPS = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


def parse_object(content: bytes) -> dict[str, Any]:  # Any: a JSON value
    """The object in this body. Raises Refusal with status 400."""
    if not content.strip():
        _refuse("The body is empty; send a JSON object.")
    _check_depth(content)
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
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
    if b"\\u" in content:
        _check_surrogates(value)
    return value


def _check_depth(content: bytes) -> None:
    """Before the parser meets it: the parser recurses."""
    if content.count(b"{") + content.count(b"[") <= DEPTH_MAX:
        return
    depth = count = 0
    # Without escapes a quotation mark always ends a string; pairs of backslashes go first.
    plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
    for token in _TOKENS.finditer(plain):
        step = _STEPS.get(token[0], 0)
        depth += step
        count += step > 0
        if count > CONTAINERS_MAX:
            _refuse(f"The body holds more than {CONTAINERS_MAX} lists and objects.")
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
    made = dict(pairs)
    if len(made) < len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f"The key {key[:80]!r} stands twice in one object of the body.")
            seen.add(key)
    return made


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(f"The number {text[:40]} is too large.")
    return value


def _constant(text: str) -> NoReturn:
    _refuse(f"{text} is not a number in JSON.")


def _refuse(message: str) -> NoReturn:
    raise Refusal(400, message, code="invalid_json")
