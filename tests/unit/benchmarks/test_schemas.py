"""Tests of `benchmarks.schemas`: they are schemas, and the two ways differ as they should."""

import jsonschema_rs
import pytest

from benchmarks.schemas import COUNT, all_schemas, judged, sample_of


def test_there_are_as_many_schemas_as_it_says_and_always_the_same() -> None:
    """Guards figures of two days, which are compared."""
    schemas = all_schemas()
    assert len(schemas) == COUNT
    assert schemas == all_schemas()
    assert sample_of(schemas, COUNT) == schemas
    assert len(sample_of(schemas, 20)) == 20
    for schema in schemas:
        jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [('{"a": 1}', "valid"), ('{"a": "x"}', "invalid"), ('{"a": 1', "unfinished")],
)
def test_an_answer_counts_when_it_is_json_of_the_schema(text: str, verdict: str) -> None:
    """Guards the figure itself."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert judged(schema, text) == verdict
