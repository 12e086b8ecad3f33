"""Tests of `benchmarks.schemas`: they are schemas, and the two ways differ as they should."""

import json

import jsonschema_rs
import pytest

from benchmarks.schemas import COUNT, SPACE_BEFORE, all_schemas, as_before, judged, sample_of
from jitney.sampling.closed_schema import closed_schema


def test_there_are_as_many_schemas_as_it_says_and_always_the_same() -> None:
    """Guards figures of two days, which are compared."""
    schemas = all_schemas()
    assert len(schemas) == COUNT
    assert schemas == all_schemas()
    assert sample_of(schemas, COUNT) == schemas
    assert len(sample_of(schemas, 20)) == 20
    for schema in schemas:
        jsonschema_rs.meta.validate(schema)


def test_the_way_before_opens_what_is_closed_now_and_nothing_else() -> None:
    """Guards the comparison: both ways ask for the same, but for other keys and white space."""
    opened_count = 0
    for schema in all_schemas():
        before = as_before(schema)
        assert closed_schema(json.dumps(before)) == json.dumps(before)
        assert before.pop("x-guidance") == {"whitespace_pattern": SPACE_BEFORE}
        shut = '"additionalProperties": false'
        closed = closed_schema(json.dumps(schema)).count(shut) - json.dumps(schema).count(shut)
        word = '"additionalProperties": true'
        assert json.dumps(before).count(word) - json.dumps(schema).count(word) == closed
        opened_count += closed
    assert opened_count > COUNT // 2


@pytest.mark.parametrize(
    ("text", "verdict"),
    [('{"a": 1}', "valid"), ('{"a": "x"}', "invalid"), ('{"a": 1', "unfinished")],
)
def test_an_answer_counts_when_it_is_json_of_the_schema(text: str, verdict: str) -> None:
    """Guards the figure itself."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert judged(schema, text) == verdict
