"""Closes the objects of a JSON schema: they take the keys that they name, and no others.

Any thread; a pure function of a text. JSON Schema lets an object have any key beside those in its
`properties`. Hardly anybody means that, and a small model invents keys until its tokens are over.
The library that compiles schemas has no option for it.

Open stay: an object without `properties`, which is a map; one whose keys are spoken of in another
way (`additionalProperties`, `patternProperties` and the like, or a required key that it does not
name); and all that stands in a join. A join is a schema of which several parts speak of one value,
as the members of `allOf` do: each names its own keys, and closed they would contradict one another.

What is valid afterwards was valid before. The text is a stranger's: each schema in it is looked at
twice at most, and nothing here calls itself.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]  # Any: JSON

_SPOKEN_OF = frozenset(
    {
        "additionalProperties", "dependencies", "dependentRequired", "dependentSchemas",
        "minProperties", "patternProperties", "propertyNames", "unevaluatedProperties",
    }
)  # fmt: skip
"""An object with one of these stays open."""
_OWN = _SPOKEN_OF | {
    "additionalItems", "items", "maxProperties", "prefixItems", "properties", "required",
    "unevaluatedItems",
}  # fmt: skip
"""What a schema itself says of keys and items, in one voice; each of those below is another."""
_CONDITIONS = frozenset(
    {"contains", "dependencies", "dependentSchemas", "else", "if", "not", "then"}
)
_OTHERS = _CONDITIONS | {"$dynamicRef", "$recursiveRef", "$ref", "const", "enum"}
_MEMBERS = ("allOf", "anyOf", "oneOf")
_SPEAKING = _OWN | _OTHERS | {*_MEMBERS}
_MINGLED = _CONDITIONS | {
    "patternProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
"""Schemas in these meet values that others speak of too, or are asked for what does not match."""
_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef", "$ref"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = _DEFINITIONS | {"dependencies", "dependentSchemas", "patternProperties", "properties"}
_PLACES = (_MINGLED - _MAPS) | {
    "additionalItems", "additionalProperties", "items", "prefixItems", *_MEMBERS,
}  # fmt: skip
_SCALARS = frozenset({"boolean", "integer", "null", "number", "string"})
_INDEX_DIGITS_MAX = 6


def closed_schema(text: str) -> str:
    """The schema with `additionalProperties: false` where an object says nothing of other keys.

    A text that is no JSON is given back as it is, and so is one in which there is nothing to close.
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
    """The schemas of objects that can be closed; none where a reference cannot be followed."""
    places = _places(root)
    alone: dict[int, Schema] = {}
    joined: dict[int, Schema] = {}
    waiting = [(root, False)]
    while waiting:
        schema, is_joined = waiting.pop()
        if id(schema) in joined or (id(schema) in alone and not is_joined):
            continue
        is_joined = is_joined or _is_join(schema)
        (joined if is_joined else alone)[id(schema)] = schema
        waiting.extend(_applied(schema, is_joined=is_joined))
        for keyword in _REFERENCES & schema.keys():
            target = _target(root, schema[keyword]) if keyword == "$ref" else None
            if target is None or id(target) not in places:
                return []
            waiting.append((target, is_joined))
    return [each for key, each in alone.items() if key not in joined and _names_all(each)]


def _places(root: Schema) -> set[int]:
    """Where schemas stand. Empty if references may mean something else than a place below it."""
    places = {id(root)}
    waiting = [root]
    while waiting:
        for _, part in _parts(waiting.pop()):
            if isinstance(part.get("$id"), str) or isinstance(part.get("id"), str):
                return set()
            places.add(id(part))
            waiting.append(part)
    return places


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas right below one, each with its keyword."""
    for keyword, value in schema.items():
        found: Iterable[object] = ()
        if keyword in _PLACES:
            found = value if isinstance(value, list) else (value,)
        elif keyword in _MAPS and isinstance(value, dict):
            found = value.values()
        yield from ((keyword, each) for each in found if isinstance(each, dict))


def _applied(schema: Schema, *, is_joined: bool) -> Iterator[tuple[Schema, bool]]:
    """The parts of a schema that values meet, each with whether it stands in a join."""
    mingled = set(_MINGLED)
    if "patternProperties" in schema:
        mingled.add("properties")
    if not _exclude_each_other(_members(schema, "oneOf")):
        # Of two that match a value neither may; closed, one of them might not match it any more.
        mingled.add("oneOf")
    for keyword, part in _parts(schema):
        if keyword not in _DEFINITIONS:
            yield part, is_joined or keyword in mingled


def _is_join(schema: Schema) -> bool:
    """Whether more than one part of it speaks of the same keys or items."""
    named = _named(schema)
    speakers = int(not _OWN.isdisjoint(schema)) + len(_OTHERS & schema.keys())
    for keyword in _MEMBERS:
        speaking = sum(not _only_requires(each, named) for each in _members(schema, keyword))
        speakers += speaking if keyword == "allOf" else min(speaking, 1)
    return speakers > 1


def _only_requires(member: object, named: frozenset[str]) -> bool:
    """Whether it says of keys at most that some are required, all of which are named beside it."""
    if not isinstance(member, dict):
        return True
    return _SPEAKING & member.keys() <= {"required"} and _required_in(member, named)


def _names_all(schema: Schema) -> bool:
    """Whether it is an object that can have the keys it names and no others."""
    if not isinstance(schema.get("properties"), dict) or not _SPOKEN_OF.isdisjoint(schema):
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
    """Whether no value can match two of them, as far as can be told at a glance.

    So it is when one of them at most is no scalar, or when all others are objects with a key that
    is a different constant in each.
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
    """The required keys of an object that can have one text only, each with that text."""
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
    """What stands where the pointer points; None where nothing does, or in another document."""
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
