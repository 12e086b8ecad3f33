"""Tests of `jitney.sampling.closed_schema`: which objects are closed, and which stay open."""

import json
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from jitney.core.params import Constraint, ConstraintKind
from jitney.sampling.closed_schema import closed_schema
from jitney.sampling.constraint import ConstraintCompiler
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

Schema = dict[str, Any]  # Any: JSON
A: Schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
B: Schema = {"type": "object", "properties": {"b": {"type": "integer"}}}
TO_A: Schema = {"$ref": "#/$defs/A"}
SHUT: Schema = {"additionalProperties": False}


def closed(schema: Any) -> Any:  # Any: JSON
    return json.loads(closed_schema(json.dumps(schema)))


def tagged(tag: str) -> Schema:
    return {"type": "object", "properties": {"is": {"const": tag}}, "required": ["is"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, A | SHUT),
        ({"properties": {}}, {"properties": {}} | SHUT),
        ({"type": ["object", "null"], **A}, {"type": ["object", "null"], **A} | SHUT),
        (A | {"required": ["a"]}, A | {"required": ["a"]} | SHUT),
        (A | {"maxProperties": 1}, A | {"maxProperties": 1} | SHUT),
        ({"properties": {"x": A}}, {"properties": {"x": A | SHUT}} | SHUT),
        ({"items": A}, {"items": A | SHUT}),
        ({"items": [A], "additionalItems": B}, {"items": [A | SHUT], "additionalItems": B | SHUT}),
        ({"prefixItems": [A], "items": B}, {"prefixItems": [A | SHUT], "items": B | SHUT}),
        ({"additionalProperties": A}, {"additionalProperties": A | SHUT}),
        ({"anyOf": [A, B]}, {"anyOf": [A | SHUT, B | SHUT]}),
        ({"allOf": [A], "title": "x"}, {"allOf": [A | SHUT], "title": "x"}),
        ({"oneOf": [A, {"type": "null"}]}, {"oneOf": [A | SHUT, {"type": "null"}]}),
        (
            {"oneOf": [tagged("x"), tagged("y")]},
            {"oneOf": [tagged("x") | SHUT, tagged("y") | SHUT]},
        ),
        (TO_A | {"$defs": {"A": A}}, TO_A | {"$defs": {"A": A | SHUT}}),
        (
            {"items": {"$ref": "#/definitions/A~1%7E0"}, "definitions": {"A/~": A}},
            {"items": {"$ref": "#/definitions/A~1%7E0"}, "definitions": {"A/~": A | SHUT}},
        ),
        ({"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}} | SHUT),
        (A | {"anyOf": [{"required": ["a"]}, {}]}, A | {"anyOf": [{"required": ["a"]}, {}]} | SHUT),
        ({"properties": {"properties": A}}, {"properties": {"properties": A | SHUT}} | SHUT),
    ],
)
def test_objects_that_name_their_keys_are_closed(schema: Schema, expected: Schema) -> None:
    """Guards answers against invented keys, wherever the object stands."""
    assert closed(schema) == expected
    assert closed(expected) == expected


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": "object", "required": ["a"]},
        {"additionalProperties": {"type": "integer"}},
        A | {"additionalProperties": True},
        A | {"additionalProperties": {"type": "string"}},
        A | {"unevaluatedProperties": True},
        A | {"patternProperties": {"^x": {}}},
        A | {"propertyNames": {"maxLength": 3}},
        A | {"minProperties": 2},
        A | {"dependentRequired": {"a": ["z"]}},
        A | {"required": ["a", "z"]},
        {"enum": [A], "default": A, "examples": [A]},
    ],
)
def test_objects_that_speak_of_other_keys_stay_open(schema: Any) -> None:
    """Guards maps and schemas that say otherwise, and values that only look like schemas."""
    assert closed(schema) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [A, B]},
        {"allOf": [{"items": A}, {"items": B}]},
        {"allOf": [{"properties": {"x": A}}, {"properties": {"x": B}}]},
        A | {"anyOf": [B, {}]},
        A | {"anyOf": [{"required": ["z"]}, {"required": ["a"]}]},
        A | {"enum": [{"a": 1, "z": 2}]},
        {"const": {"a": 1, "z": 2}, "properties": {"a": {}}},
        {"anyOf": [A], "oneOf": [B]},
        {"anyOf": [{"anyOf": [A]}, A], "required": ["z"]},
        TO_A | B | {"$defs": {"A": A}},
        TO_A | {"required": ["z"], "$defs": {"A": A}},
        {"allOf": [TO_A, B], "$defs": {"A": A}},
        {"properties": {"x": TO_A, "y": {"allOf": [TO_A, B]}}, **SHUT, "$defs": {"A": A}},
        {"properties": {"x": A}, "patternProperties": {"^x": B}},
        {"if": A, "then": B, "else": B},
        {"not": A},
        {"items": A, "contains": B},
        {"dependentSchemas": {"a": B}},
        {"dependencies": {"a": B, "b": ["a"]}},
        {"oneOf": [A, B]},
        {"oneOf": [tagged("x"), tagged("x")]},
        {"oneOf": [tagged("x"), A]},
        {"oneOf": [A, True]},
    ],
)
def test_joins_stay_open(schema: Schema) -> None:
    """Guards schemas of which several parts speak of one value: closed, nothing would match all."""
    assert closed(schema) == schema


@pytest.mark.parametrize(
    "pointer", ["#A", "other.json#/$defs/A", "#/enum/0", "#/$defs/B", "#/oneOf/9", 7, "#/title/0"]
)
def test_where_a_reference_leads_nowhere_nothing_is_closed(pointer: object) -> None:
    """Guards against closing what an unknown reference joins, and values that are no schemas."""
    schema = {"properties": {"a": {"$ref": pointer}}, "enum": [A], "title": "x", "oneOf": []}
    assert closed(schema) == schema
    for keyword in ("$dynamicRef", "$recursiveRef"):
        schema = {"properties": {"a": {keyword: "#"}}}
        assert closed(schema) == schema


def test_inner_addresses_make_references_uncertain() -> None:
    """Guards against a pointer that counts from an inner schema with an address of its own."""
    inner = A | {"$id": "inner.json"}
    schema = {"properties": {"a": inner, "b": {"$ref": "#/properties/a"}}}
    assert closed(schema) == schema
    assert closed({"items": inner}) == {"items": inner | SHUT}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": []},
        {"properties": {"a": 1}, "required": 1},
        {"properties": {"a": 1}, "required": [[], {}]},
        {"allOf": 1, "anyOf": {}, "oneOf": [1, [], {"type": {}}, {"type": [[]]}], "items": 1},
        {"oneOf": [{"type": "object", "required": 1}, {"type": "object", "properties": 1}]},
        {"oneOf": [{"type": "object", "required": [[]], "properties": {}}, tagged("x")]},
        {"$defs": [], "definitions": 1, "dependencies": []},
        [A],
        None,
    ],
)
def test_what_is_no_schema_is_left_to_the_compiler(schema: Any) -> None:
    """Guards the process against shapes that nobody foresaw: no error, and nothing is changed."""
    assert closed(schema) == schema


@pytest.mark.parametrize("text", ["nonsense", '{"properties":' * 100_000 + "1" + "}" * 100_000, ""])
def test_what_is_no_json_is_given_back(text: str) -> None:
    """Guards the compiler's own sentences about texts that cannot be read."""
    assert closed_schema(text) == text


def counted(schema: Schema) -> int:
    """How many functions are entered, those of the library included."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    text = json.dumps(schema)
    sys.setprofile(note)
    try:
        closed_schema(text)
    finally:
        sys.setprofile(None)
    return count


def many_references(count: int) -> Schema:
    """As many references as members, from alone and from joins, to one large schema."""
    large = {"anyOf": [A] * count, "properties": {str(at): {} for at in range(count)}}
    joins = [{"allOf": [TO_A, B]} for _ in range(count)]
    return {"prefixItems": [TO_A] * count + joins, "$defs": {"A": large}}


def many_tags(count: int) -> Schema:
    """One member with many constant keys, among many members."""
    names = [str(at) for at in range(count)]
    wide = {"type": "object", "properties": {n: {"const": n} for n in names}, "required": names}
    return {"oneOf": [wide] + [tagged("x")] * count}


@pytest.mark.parametrize("made", [many_references, many_tags])
def test_work_grows_with_the_schema_and_no_faster(made: Any) -> None:
    """Guards the server against a stranger's schema that takes the square of its size."""
    small, large = (counted(made(count)) for count in (100, 400))
    assert small > 100
    assert large < 5 * small


VOCABULARY = byte_vocabulary()


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    made = ConstraintCompiler(VOCABULARY, lambda text: encode(text, special=False))
    yield made
    made.close()


def following(compiler: ConstraintCompiler, schema: Any, text: str) -> set[int]:
    """The tokens that may follow a text."""
    matcher = compiler.compile(Constraint(ConstraintKind.JSON, json.dumps(schema)))
    matcher.advance_to(list(text.encode()))
    return {int(token) for token in np.flatnonzero(matcher.mask())}


@pytest.mark.parametrize(
    "schema", [A, TO_A | {"$defs": {"A": A}}, {"anyOf": [A, {"type": "null"}]}]
)
def test_an_undeclared_key_cannot_be_begun(compiler: ConstraintCompiler, schema: Schema) -> None:
    """Guards the whole way to the mask: after `{"` there is the key that is named, and no other."""
    assert following(compiler, schema, '{"') == {ord("a")}
    assert ord(",") not in following(compiler, schema, '{"a":1')


@pytest.mark.parametrize("schema", [{"type": "object"}, A | {"additionalProperties": True}])
def test_open_objects_take_any_key(compiler: ConstraintCompiler, schema: Schema) -> None:
    """Guards free maps and `json_object`."""
    assert ord("z") in following(compiler, schema, '{"')


def test_space_ends(compiler: ConstraintCompiler) -> None:
    """Guards against answers of spaces: each place takes a bounded number, and no second line."""
    space = {ord(each) for each in " \n\r\t"}
    for start in ("{", '{"a"', '{"a":', '{"a":1'):
        assert following(compiler, A, start + "\n" + " " * 20).isdisjoint(space)
        assert following(compiler, A, start + " ").isdisjoint(space)


@pytest.mark.parametrize("schema", [{"allOf": [A, B], "required": ["a", "b"]}, tagged("x")])
def test_what_compiled_open_compiles(compiler: ConstraintCompiler, schema: Schema) -> None:
    """Guards against a refusal that only closing brings about."""
    assert ord('"') in following(compiler, schema, "{")
