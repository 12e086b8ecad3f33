"""Closing the objects of random schemas: never more is valid, and no schema is lost."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import InvalidRequest
from jitney.sampling import grammar
from jitney.sampling.closed_schema import closed_schema
from jitney.sampling.grammar import build_tokenizer, compile_grammar
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

Schema = dict[str, Any]  # Any: JSON
KEYS = st.sampled_from("abc")
POINTERS = st.sampled_from(["#", "#/$defs/d", "#/$defs/e", "#/properties/a"])
LEAVES = st.sampled_from(
    [
        {},
        {"type": "integer"},
        {"const": "x"},
        {"enum": ["y"]},
        {"const": {"a": "x", "b": "y"}},
        True,
    ]
)


def object_schemas(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Objects with a few keys, and now and then with words about others."""
    return st.fixed_dictionaries(
        {"properties": st.dictionaries(KEYS, values, max_size=2)},
        optional={
            "type": st.just("object"),
            "required": st.lists(KEYS, max_size=2, unique=True),
            "additionalProperties": st.one_of(st.booleans(), values),
            "patternProperties": st.dictionaries(KEYS, values, min_size=1, max_size=1),
        },
    )


def joins(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """A schema of several voices."""
    members = st.lists(values, min_size=1, max_size=3)
    optional = {
        "allOf": members,
        "anyOf": members,
        "oneOf": members,
        "properties": st.dictionaries(KEYS, values, max_size=2),
        "required": st.lists(KEYS, max_size=1),
        "$ref": POINTERS,
        "not": values,
        "if": values,
        "then": values,
    }
    return st.fixed_dictionaries({}, optional=optional)


def one_applicator(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """A schema of one voice."""
    members = st.lists(values, min_size=1, max_size=3)
    return st.one_of(
        st.sampled_from(["allOf", "anyOf", "oneOf"]).flatmap(
            lambda name: st.fixed_dictionaries({name: members})
        ),
        st.fixed_dictionaries({"type": st.just("array"), "items": values}),
    )


def schemas() -> st.SearchStrategy[Schema]:
    """Whole documents, with two definitions."""
    parts = st.recursive(
        st.one_of(LEAVES, st.fixed_dictionaries({"$ref": POINTERS})),
        lambda inner: st.one_of(object_schemas(inner), one_applicator(inner), joins(inner)),
        max_leaves=12,
    )
    definitions = st.fixed_dictionaries({"d": parts, "e": object_schemas(LEAVES)})
    roots = st.one_of(object_schemas(parts), joins(parts))
    return st.builds(lambda root, named: {**root, "$defs": named}, roots, definitions)


def demanding() -> st.SearchStrategy[Schema]:
    """Documents of objects that require keys, joined or not: closed wrongly, nothing is left."""

    def typed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
        named = st.dictionaries(KEYS, values, min_size=1, max_size=2)
        asked = st.lists(KEYS, min_size=1, max_size=2, unique=True)
        several = st.lists(values, min_size=2, max_size=2)
        return st.one_of(
            st.builds(
                lambda names, more: {
                    "type": "object",
                    "properties": names,
                    "required": [*names, *(name for name in more if name not in names)],
                },
                named,
                st.one_of(st.just([]), asked),
            ),
            st.fixed_dictionaries({"allOf": several}),
            st.fixed_dictionaries({"anyOf": several}),
            st.fixed_dictionaries({"$ref": POINTERS, "required": asked}),
            st.fixed_dictionaries(
                {"type": st.just("object"), "properties": named, "allOf": several}
            ),
        )

    leaves = st.one_of(
        st.just({"type": "integer"}),
        st.just({"$ref": "#/$defs/e"}),
        typed(st.just({"type": "integer"})),
    )
    parts = st.recursive(leaves, typed, max_leaves=5)
    definitions = st.fixed_dictionaries({"d": typed(leaves), "e": typed(st.just({}))})
    return st.builds(lambda root, named: {**root, "$defs": named}, typed(parts), definitions)


INSTANCES = st.recursive(
    st.sampled_from([1, "x", "y", None]),
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=3), st.lists(inner, min_size=1, max_size=2)
    ),
    max_leaves=6,
)


def is_valid(schema: Schema, instance: Any) -> bool | None:
    """None for what a validator does not take, such as a reference to nothing or to itself."""
    try:
        return jsonschema_rs.Draft202012Validator(schema).is_valid(instance)
    except ValueError:
        return None


@settings(max_examples=100, deadline=None)
@given(schema=schemas())
def test_closing_twice_is_closing_once(schema: Schema) -> None:
    """Guards tools, whose schemas may be closed when they are put together, and again later."""
    once = closed_schema(json.dumps(schema))
    assert closed_schema(once) == once


@settings(max_examples=100, deadline=None)
@given(schema=schemas(), instances=st.lists(INSTANCES, min_size=1, max_size=10))
def test_what_is_valid_closed_is_valid(schema: Schema, instances: list[Any]) -> None:
    """Guards the promise of a schema: what the closed one allows, the caller's own allows too."""
    closed = json.loads(closed_schema(json.dumps(schema)))
    for instance in instances:
        if is_valid(closed, instance):
            assert is_valid(schema, instance), instance


TOKENIZER = build_tokenizer(byte_vocabulary(), lambda text: encode(text, special=False))


def refusal_of(text: str) -> str | None:
    try:
        compile_grammar(TOKENIZER, Constraint(ConstraintKind.JSON, text))
    except InvalidRequest as error:
        return str(error)
    return None


@settings(max_examples=100, deadline=None)
@given(schema=st.one_of(demanding(), schemas()))
def test_what_compiles_open_compiles_closed(schema: Schema) -> None:
    """Guards schemas that were accepted: closing must not leave one that nothing satisfies."""
    text = json.dumps(schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "closed_schema", lambda given: given)
        is_refused_open = refusal_of(text) is not None
    if not is_refused_open:
        assert refusal_of(text) is None
