"""Closes the objects of a JSON schema: they then allow only the keys in their `properties`.

Any thread; a pure function of a text. JSON Schema lets an object have any key besides those in its
`properties`. Few people want that, and a small model invents keys until it has no tokens left. The
library that compiles schemas has no option for this.

These objects stay open: an object without `properties`, which is a map; an object with other rules
about its keys (such as `additionalProperties` or `patternProperties`, or a required key that it
does not name); and every part of a combined schema. In a combined schema several parts describe the
same value, such as the members of `allOf`. Each part names its own keys, so closed parts would
contradict each other.

A value that is valid afterwards was valid before. The text is untrusted: each schema in it is
visited at most twice, and there is no recursion.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]  # Any: JSON

_KEY_RULES = frozenset(
    {
        "additionalProperties", "dependencies", "dependentRequired", "dependentSchemas",
        "minProperties", "patternProperties", "propertyNames", "unevaluatedProperties",
    }
)  # fmt: skip
"""An object with one of these stays open."""
_OWN_RULES = _KEY_RULES | {
    "additionalItems", "items", "maxProperties", "prefixItems", "properties", "required",
    "unevaluatedItems",
}  # fmt: skip
"""The rules of a schema about its own keys and items; together they count as one part."""
_CONDITIONS = frozenset(
    {"contains", "dependencies", "dependentSchemas", "else", "if", "not", "then"}
)
_OTHER_RULES = _CONDITIONS | {"$dynamicRef", "$recursiveRef", "$ref", "const", "enum"}
_MEMBERS = ("allOf", "anyOf", "oneOf")
_RULES = _OWN_RULES | _OTHER_RULES | {*_MEMBERS}
_SHARED = _CONDITIONS | {
    "patternProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
"""Schemas under these keywords share their values with other schemas, or are negated."""
_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef", "$ref"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = _DEFINITIONS | {"dependencies", "dependentSchemas", "patternProperties", "properties"}
_SUBSCHEMAS = (_SHARED - _MAPS) | {
    "additionalItems", "additionalProperties", "items", "prefixItems", *_MEMBERS,
}  # fmt: skip
_SCALARS = frozenset({"boolean", "integer", "null", "number", "string"})
_INDEX_DIGITS_MAX = 6


def closed_schema(text: str) -> str:
    """The schema with `additionalProperties: false` in every object that can be closed.

    A text that is not JSON, or has nothing to close, is returned unchanged.
    """
    try:
        root = json.loads(text)
        closable = _closable(root) if isinstance(root, dict) else []
        for schema in closable:
            schema["additionalProperties"] = False
        return json.dumps(root) if closable else text
    except (ValueError, RecursionError):
        return text


def _closable(root: Schema) -> list[Schema]:
    """The schemas of objects that can be closed; empty if a reference cannot be followed."""
    subschemas = _subschemas(root)
    alone: dict[int, Schema] = {}
    combined: dict[int, Schema] = {}
    waiting = [(root, False)]
    while waiting:
        schema, is_combined = waiting.pop()
        if id(schema) in combined or (id(schema) in alone and not is_combined):
            continue
        is_combined = is_combined or _is_combined(schema)
        (combined if is_combined else alone)[id(schema)] = schema
        waiting.extend(_applied_parts(schema, is_combined=is_combined))
        for keyword in _REFERENCES & schema.keys():
            target = _target(root, schema[keyword]) if keyword == "$ref" else None
            if target is None or id(target) not in subschemas:
                return []
            waiting.append((target, is_combined))
    return [each for key, each in alone.items() if key not in combined and _names_all(each)]


def _subschemas(root: Schema) -> set[int]:
    """The ids of all schemas in `root`. Empty if an `$id` may change what references mean."""
    subschemas = {id(root)}
    waiting = [root]
    while waiting:
        for _, part in _parts(waiting.pop()):
            if isinstance(part.get("$id"), str) or isinstance(part.get("id"), str):
                return set()
            subschemas.add(id(part))
            waiting.append(part)
    return subschemas


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas directly inside a schema, each with its keyword."""
    for keyword, value in schema.items():
        found: Iterable[object] = ()
        if keyword in _SUBSCHEMAS:
            found = value if isinstance(value, list) else (value,)
        elif keyword in _MAPS and isinstance(value, dict):
            found = value.values()
        yield from ((keyword, each) for each in found if isinstance(each, dict))


def _applied_parts(schema: Schema, *, is_combined: bool) -> Iterator[tuple[Schema, bool]]:
    """The parts of a schema that apply to values, each with whether it is combined."""
    shared = set(_SHARED)
    if "patternProperties" in schema:
        shared.add("properties")
    if not _exclude_each_other(_members(schema, "oneOf")):
        # oneOf refuses a value that matches two members. If a member were closed, it might no
        # longer match, and the value would become valid.
        shared.add("oneOf")
    for keyword, part in _parts(schema):
        if keyword not in _DEFINITIONS:
            yield part, is_combined or keyword in shared


def _is_combined(schema: Schema) -> bool:
    """Whether more than one part of the schema has rules about its keys or items."""
    named = _named(schema)
    sources = int(not _OWN_RULES.isdisjoint(schema)) + len(_OTHER_RULES & schema.keys())
    for keyword in _MEMBERS:
        count = sum(not _only_requires(each, named) for each in _members(schema, keyword))
        sources += count if keyword == "allOf" else min(count, 1)
    return sources > 1


def _only_requires(member: object, named: frozenset[str]) -> bool:
    """Whether its only rule is that some of the `named` keys are required."""
    if not isinstance(member, dict):
        return True
    return _RULES & member.keys() <= {"required"} and _required_in(member, named)


def _names_all(schema: Schema) -> bool:
    """Whether it is an object whose `properties` name all keys that it needs."""
    if not isinstance(schema.get("properties"), dict) or not _KEY_RULES.isdisjoint(schema):
        return False
    return _required_in(schema, _named(schema))


def _required_in(schema: Schema, named: frozenset[str]) -> bool:
    required = schema.get("required", [])
    return isinstance(required, list) and all(
        isinstance(name, str) and name in named for name in required
    )


def _named(schema: Schema) -> frozenset[str]:
    properties = schema.get("properties")
    return frozenset(properties) if isinstance(properties, dict) else frozenset()


def _members(schema: Schema, keyword: str) -> list[object]:
    members = schema.get(keyword)
    return members if isinstance(members, list) else []


def _exclude_each_other(members: list[object]) -> bool:
    """Whether no value can match two of the members, by a simple test.

    It is true if at most one member is not a scalar. It is also true if all members that are not
    scalars are objects with a key that is a different constant in each.
    """
    others = [member for member in members if not _is_scalar(member)]
    texts: dict[str, set[str]] = {}
    for member in others:
        for name, text in _tags(member):
            texts.setdefault(name, set()).add(text)
    return len(others) <= 1 or any(len(each) == len(others) for each in texts.values())


def _is_scalar(member: object) -> bool:
    types = member.get("type") if isinstance(member, dict) else None
    listed = types if isinstance(types, list) else [types]
    return all(isinstance(each, str) and each in _SCALARS for each in listed)


def _tags(member: object) -> Iterator[tuple[str, str]]:
    """The required keys of an object that allow only one text, each with that text."""
    if not isinstance(member, dict) or member.get("type") != "object":
        return
    required, properties = member.get("required"), member.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return
    for name in {each for each in required if isinstance(each, str)}:
        text = _only_text(properties.get(name))
        if text is not None:
            yield name, text


def _only_text(value: object) -> str | None:
    """The only text that a schema allows."""
    if not isinstance(value, dict):
        return None
    values = [value["const"]] if "const" in value else value.get("enum")
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return None


def _target(root: Schema, pointer: object) -> Any:  # Any: JSON
    """The value that a pointer names; None if there is none, or if it is in another document."""
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        return None
    found: Any = root
    for written in pointer.split("/")[1:]:
        name = unquote(written).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and len(name) <= _INDEX_DIGITS_MAX:
            found = found[int(name)] if int(name) < len(found) else None
        else:
            return None
    return found
