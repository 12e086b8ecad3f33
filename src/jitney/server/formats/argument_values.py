"""Values of arguments that were written as text, as JSON. Pure; linear in the text.

The schema of the tool says what a text is: a string stays what it is, anything else is read as
JSON, or as Python's words for it.

Tests: tests/unit/server/formats/test_families.py.
"""

import json
from collections.abc import Callable
from typing import Any

from jitney.server.formats.text_reader import whole, written

_WORDS = {"True": "true", "False": "false", "None": "null", "none": "null"}
_DEPTH_MAX = 8
_MEMBERS = ("anyOf", "oneOf", "allOf")
_ANY = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def parameter_schema(schema: Any, name: str) -> Any:  # Any: a JSON schema
    """The schema of one parameter of a tool. One that the tool does not name may be anything."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    found = properties.get(name) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else {}


def types_of(
    schema: Any, root: Any, depth: int = 0, known: dict[str, frozenset[str]] | None = None
) -> frozenset[str]:  # Any: JSON schemas
    """The JSON types that a schema allows, as far as it says so.

    `known` has what pointers were found to allow: each is followed once.
    """
    known = {} if known is None else known
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return _ANY
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        return frozenset(_type_name(each) for each in listed)
    if isinstance(pointer := schema.get("$ref"), str):
        if pointer not in known:
            known[pointer] = _ANY  # until it is found: it may lead back here
            known[pointer] = types_of(_target(root, pointer), root, depth + 1, known)
        return known[pointer]
    for keyword in _MEMBERS:
        members = schema.get(keyword)
        if isinstance(members, list) and members:
            found = [types_of(each, root, depth + 1, known) for each in members]
            return (
                frozenset.intersection(*found) if keyword == "allOf" else frozenset().union(*found)
            )
    return _ANY


def json_of(text: str, types: frozenset[str]) -> str:
    """The value that a text stands for, as JSON."""
    trimmed = text.strip()
    word = _WORDS.get(trimmed, trimmed)
    if types == {"string"} or ("string" in types and types != _ANY and not _is_null(word, types)):
        return written(text)
    try:
        value = json.loads(word)
        if types == _ANY and isinstance(value, str):
            return written(text)
        return whole(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return written(text)


class StringValue:
    """A string in JSON that is written while its text arrives."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._held = ""
        self._is_first = True
        write('"')

    def take(self, text: str) -> None:
        """More of its text. One line break at its beginning and one at its end are markup."""
        if self._is_first and text:
            self._is_first = False
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = text[-1:] if text.endswith("\n") else ""
        self._write(written(text.removesuffix("\n"))[1:-1])

    def end(self) -> None:
        """The string is complete."""
        self._write('"')


class OtherValue:
    """Any other value: it is read when it is complete."""

    def __init__(self, write: Callable[[str], None], types: frozenset[str]) -> None:
        self._write = write
        self._types = types
        self._texts: list[str] = []

    def take(self, text: str) -> None:
        """More of its text."""
        self._texts.append(text)

    def end(self) -> None:
        """The value is complete."""
        text = "".join(self._texts).removeprefix("\n").removesuffix("\n")
        self._write(json_of(text, self._types))


def value_writer(
    write: Callable[[str], None], schema: Any, root: Any
) -> StringValue | OtherValue:  # Any: JSON schemas
    """What writes a value of this schema."""
    types = types_of(schema, root)
    return StringValue(write) if types == {"string"} else OtherValue(write, types)


def _is_null(word: str, types: frozenset[str]) -> bool:
    return word == "null" and "null" in types


def _type_name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _target(root: Any, pointer: str) -> Any:
    found = root
    for name in pointer.removeprefix("#").split("/")[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found
