"""From the bytes of a request to a checked body: JSON, fields, what is wrong with them. Pure.

`parse_object` refuses what is not exactly JSON (NaN, 1e999, bad UTF-8, half surrogate pairs), what
readers may understand in two ways (duplicate keys), and what is nested too deeply or too large.
Any thread.
"""

import difflib
import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jitney.server import limits
from jitney.server.error_object import Refusal
from jitney.server.openai.bodies import Body, Strict

CLOSE_MIN = 0.75
"""How similar a name must be for a hint: `store` is not `stream`."""

_EXPECTED = {
    "prompt": f"a string, a list of 1 to {limits.PROMPTS_MAX} strings, a list of token ids, "
    "or a list of such lists",
    "stop": "a string of 1 to 256 characters, or a list of up to 16 of them",
    "priority": "low, normal, high or critical, or a whole number of up to 31 bits",
    "tool_choice": "none, auto, required, or an object that names a function",
    "response_format": "an object whose type is text, json_object or json_schema",
}
"""For fields of several forms: pydantic would report every form."""

_OBJECT_TYPES = frozenset({"dict_type", "model_type", "model_attributes_type"})
"""Pydantic's errors for a value that is not an object."""

_STRINGS = re.compile(rb'"[^"]*+"?')
"""Strings without escapes, closed or not. Each match that begins succeeds, so no byte is read
twice."""

_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]")
_STEPS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_OTHERS = bytes(set(range(256)) - set(_STEPS) - set(b'",'))


def check_body(
    content: bytes,
    kind: type[Body],
    values_max: int = limits.VALUES_MAX,
    ignored: list[str] | None = None,
) -> Body:
    """The body in these bytes. Raises Refusal with status 400."""
    return check_fields(parse_object(content, values_max), kind, ignored)


def check_fields(
    fields: dict[str, Any],  # Any: a JSON value
    kind: type[Body],
    ignored: list[str] | None = None,
    unknown: str | None = None,
) -> Body:
    """The body in this object, which is used up. Raises Refusal with status 400.

    Harmless fields that the body does not have are added to `ignored`; without that list they are
    refused. All names in it are those of the body's tables. With `unknown` all other fields that it
    does not have are harmless, too, and have that name together.
    """
    for name in [each for each in fields if each in kind.refused]:
        refused = kind.refused[name]
        if refused.passes(fields.pop(name)):
            continue
        if ignored is None or not refused.is_harmless:
            raise Refusal(
                "unsupported_parameter", f"{name} is not supported: {refused.reason}.", param=name
            )
        ignored.append(name)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        parts = () if ignored is None else kind.ignored_parts
        dropped = [path for path in parts if _drop(fields, path.split("."))]
        if ignored is None or (unknown is None and not dropped):
            raise _explained(error, kind) from None
        ignored += dropped
        if dropped:
            return check_fields(fields, kind, ignored, unknown)
    except RecursionError:
        raise Refusal("invalid_json", "The body is nested too deeply.") from None
    try:
        body = kind.model_validate(fields, extra="ignore")
    except ValidationError as error:
        raise _explained(error, kind) from None
    assert unknown is not None, "anything else was refused"
    ignored.append(unknown)
    return body


def _drop(value: Any, path: list[str]) -> bool:
    """Leave out what has this path, in all items of lists. Whether there was any."""
    if isinstance(value, list):
        return sum(_drop(each, path) for each in value) > 0
    if not isinstance(value, dict) or path[0] not in value:
        return False
    if len(path) > 1:
        return _drop(value[path[0]], path[1:])
    del value[path[0]]
    return True


def parse_object(
    content: bytes, values_max: int = limits.VALUES_MAX
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
        _refuse(f"The body is nested more than {limits.DEPTH_MAX} deep.")
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
    is_short = len(marks) < min(values_max, limits.VALUES_MAX)
    if is_short and marks.count(b"{") + marks.count(b"[") <= limits.DEPTH_MAX:
        return  # it is within all bounds, even if nothing of it is inside strings
    if b"\\" in content:
        # Without escapes a quotation mark always ends a string; pairs of backslashes go first.
        plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
        marks = plain.translate(None, _OTHERS)
    if marks.count(b'"') > 2 * limits.VALUES_MAX:
        _refuse(f"The body holds more than {limits.VALUES_MAX} strings.")
    bare = _STRINGS.sub(b"", marks)
    if bare.count(b",") >= values_max:
        _refuse(f"The body holds more than {values_max} strings and numbers.")
    if bare.count(b"{") + bare.count(b"[") > limits.CONTAINERS_MAX:
        _refuse(f"The body holds more than {limits.CONTAINERS_MAX} lists and objects.")
    depth = 0
    for bracket in bare.translate(None, b","):
        depth += _STEPS[bracket]
        if depth > limits.DEPTH_MAX:
            _refuse(f"The body is nested more than {limits.DEPTH_MAX} deep.")


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        _refuse("The body holds half of a surrogate pair, which is no character.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > limits.OBJECT_KEYS_MAX:
        _refuse(f"An object in the body has more than {limits.OBJECT_KEYS_MAX} keys.")
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        _refuse(f"The key {key[:80]!r} stands twice in one object of the body.")
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


def _explained(error: ValidationError, kind: type[Strict]) -> Refusal:
    """The first thing that is wrong, in a sentence, with the field in OpenAI's spelling."""
    found = error.errors(include_url=False, include_context=True, include_input=False)[0]
    places = _without_tags(list(found["loc"]), kind.tags)
    is_extra = found["type"] == "extra_forbidden"
    # The last part of an unknown field is its name, whatever it looks like.
    last = [str(places.pop())[: limits.NAME_CHARACTERS_MAX]] if is_extra else []
    names = [part for part in places if isinstance(part, int) or _is_name(part)] + last
    top = str(names[0]) if names else None
    param = _path(names)
    if is_extra:
        fields = kind.model_fields if len(names) == 1 else {}
        known = [each.alias or name for name, each in fields.items()]
        close = difflib.get_close_matches(str(names[-1]), known, n=1, cutoff=CLOSE_MIN)
        hint = f"; did you mean {close[0]}?" if close else "."
        return Refusal("unknown_parameter", f"There is no field {param}{hint}", param=param)
    if found["type"] == "missing":
        return Refusal("missing_required_parameter", f"{param} is missing.", param=param)
    message = _message(found)
    if found["type"] in _OBJECT_TYPES and len(names) > 1:
        return Refusal("invalid_type", f"{param} must be an object.", param=param)
    if found["type"] == "string_type" and len(places) == 1:
        # A field of one form; with several forms, the place contains the form too.
        return Refusal("invalid_type", f"{param} must be a string.", param=param)
    is_whole = top != "response_format" or len(names) == 1
    # Bodies with tags are of another interface, where fields of the same names have other forms.
    if top in _EXPECTED and not kind.tags and is_whole and found["type"] != "value_error":
        return Refusal("invalid_value", f"{top} must be {_EXPECTED[top]}.", param=top)
    code = "invalid_type" if found["type"].endswith("_type") else "invalid_value"
    return Refusal(code, f"{param}: {message}.", param=param)


def _message(found: ErrorDetails) -> str:
    message = str(found["msg"]).removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:]


def _without_tags(places: list[int | str], tags: frozenset[str]) -> list[int | str]:
    """The place without the tags that pydantic adds to what has several forms."""
    if places[:1] == ["input"]:
        return [*places[:2], *places[3:]]
    if places[:1] == ["response_format"]:
        return [*places[:1], *places[2:]]
    return [
        part
        for before, part in zip([None, *places], places, strict=False)
        if not (part in tags and (isinstance(before, int) or before == "tool"))
    ]


def _is_name(part: str) -> bool:
    """Whether this is a field, and not pydantic's name for one of its forms."""
    return part.isidentifier() and part not in ("str", "int", "float", "bool", "none", "list")


def _path(names: list[Any]) -> str | None:  # Any: keys and indices
    path = ""
    for name in names:
        if isinstance(name, int):
            path += f"[{name}]"
        else:
            path += f".{name}" if path else str(name)
    return path[:200] or None
