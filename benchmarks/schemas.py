"""JSON that ends: how many schemas a small model completes, with closed objects and with open ones.

    python -m benchmarks.schemas [--count 300] [--tokens 64]

Each schema is asked of the embedded model twice, greedily and with so many tokens: `before`, where
objects without a word about other keys take any, and a line may be indented by 40; and `after`, as
schemas are compiled. An answer counts when it is JSON of the schema as it was written; it does not
when its tokens were over first. About a third of the schemas are those of `schemas.jsonl`, after
real APIs; the others are drawn from a seed. A smaller count takes every so many of them. Answers
that do not count are printed. The last line is JSON.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema_rs

from jitney import LLM, SamplingParams, StructuredOutputsParams
from jitney.api.outputs import RequestOutput
from jitney.engine.handle import Handle
from jitney.errors import InvalidRequest
from jitney.sampling.closed_schema import closed_schema

COUNT = 300
TOKENS = 64
AT_ONCE = 16
SEED = 11
WRITTEN = Path(__file__).with_name("schemas.jsonl")
SPACE_BEFORE = r"\x20|\x0D?\x0A[\x20\x09]{0,40}"
WAYS = ("before", "after")
NAMES = (
    "id", "name", "title", "status", "count", "price", "tags", "owner", "city", "notes", "score",
    "created", "email", "kind", "size", "color", "active", "items", "level", "unit",
)  # fmt: skip
THINGS = ("record", "device", "ticket", "document", "vehicle", "member", "machine", "plan")
SCALARS: tuple[dict[str, Any], ...] = (
    {"type": "string"},
    {"type": "string", "maxLength": 20},
    {"type": "string", "enum": ["low", "medium", "high"]},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "email"},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
    {"type": "integer"},
    {"type": "integer", "minimum": 0, "maximum": 100},
    {"type": "number"},
    {"type": "boolean"},
    {"type": ["string", "null"]},
    {"const": "v1"},
)

Schema = dict[str, Any]  # Any: JSON


def all_schemas(count: int = COUNT, seed: int = SEED) -> list[Schema]:
    """Those that were written, and as many drawn ones as are missing."""
    written = [json.loads(line) for line in WRITTEN.read_text(encoding="utf-8").splitlines()]
    drawn = _drawn(random.Random(seed))
    return [*written[:count], *islice(drawn, max(count - len(written), 0))]


def sample_of(schemas: Sequence[Schema], count: int) -> list[Schema]:
    """So many of them, from all over."""
    return [schemas[at * len(schemas) // count] for at in range(count)]


def _drawn(generator: random.Random) -> Iterator[Schema]:
    makers = (_flat, _flat, _nested, _listed, _defined, _either, _tagged, _joined, _requiring, _map)
    while True:
        for make in makers:
            thing = f"a {generator.choice(('small', 'new', 'shared'))} {generator.choice(THINGS)}"
            yield {"title": thing, **make(generator)}


def _flat(generator: random.Random) -> Schema:
    names = generator.sample(NAMES, generator.randint(1, 5))
    required = [name for name in names if generator.random() < 0.6]
    properties = {name: generator.choice(SCALARS) for name in names}
    return {"type": "object", "properties": properties, "required": required}


def _nested(generator: random.Random) -> Schema:
    inner = _nested(generator) if generator.random() < 0.3 else _flat(generator)
    outer = _flat(generator)
    outer["properties"]["inner"] = inner
    outer["required"].append("inner")
    return outer


def _listed(generator: random.Random) -> Schema:
    bounds = generator.choice(
        ({}, {"minItems": 1}, {"maxItems": 3}, {"minItems": 1, "maxItems": 2})
    )
    items = generator.choice((_flat(generator), generator.choice(SCALARS)))
    listed = {"type": "array", "items": items, **bounds}
    if generator.random() < 0.3:
        return listed
    return {"type": "object", "properties": {"list": listed}, "required": ["list"]}


def _defined(generator: random.Random) -> Schema:
    key = generator.choice(("$defs", "definitions"))
    pointer = {"$ref": f"#/{key}/Part"}
    part = _flat(generator)
    if generator.random() < 0.4:
        part["properties"]["parts"] = {"type": "array", "items": pointer}
    properties = {"main": pointer, "other": pointer}
    return {"type": "object", "properties": properties, "required": ["main"], key: {"Part": part}}


def _either(generator: random.Random) -> Schema:
    return {"anyOf": [_flat(generator), generator.choice((_flat(generator), {"type": "null"}))]}


def _tagged(generator: random.Random) -> Schema:
    members = []
    for tag in generator.sample(THINGS, generator.randint(2, 3)):
        member = _flat(generator)
        member["properties"] = {"kind": {"const": tag}, **member["properties"]}
        member["properties"]["kind"] = {"const": tag}
        members.append({**member, "required": sorted({"kind", *member["required"]})})
    return {generator.choice(("anyOf", "oneOf")): members}


def _joined(generator: random.Random) -> Schema:
    own = {"type": "object", "properties": {"extra": {"type": "integer"}}, "required": ["extra"]}
    return {"allOf": [_flat(generator), own]}


def _requiring(generator: random.Random) -> Schema:
    """An object that requires a key which it does not describe, or one of two that it does."""
    schema = _flat(generator)
    if generator.random() < 0.5:
        return {**schema, "required": [*schema["required"], "reason"]}
    names = list(schema["properties"])
    return {**schema, "required": [], "anyOf": [{"required": [name]} for name in names]}


def _map(generator: random.Random) -> Schema:
    values = generator.choice((True, generator.choice(SCALARS)))
    schema = generator.choice(({"type": "object"}, _flat(generator)))
    return {**schema, "additionalProperties": values}


def as_before(schema: Schema) -> Schema:
    """The same with open objects and wide lines, said in words that the compiler knows."""
    opened = _opened(schema, json.loads(closed_schema(json.dumps(schema))))
    assert isinstance(opened, dict)
    return {**opened, "x-guidance": {"whitespace_pattern": SPACE_BEFORE}}


def _opened(given: Any, closed: Any) -> Any:  # Any: JSON
    """What closing closed is opened by name; all else is as it was given."""
    if isinstance(given, list):
        return [_opened(*each) for each in zip(given, closed, strict=True)]
    if not isinstance(given, dict):
        return given
    opened = {name: _opened(value, closed[name]) for name, value in given.items()}
    is_closed = "additionalProperties" in closed and "additionalProperties" not in given
    return {**opened, "additionalProperties": True} if is_closed else opened


def judged(schema: Schema, text: str) -> str:
    """`valid`, or what is wrong with it."""
    try:
        value = json.loads(text)
    except ValueError:
        return "unfinished"
    is_valid = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
    return "valid" if is_valid else "invalid"


def answered(llm: LLM, schemas: Sequence[Schema], way: str, tokens: int) -> list[str]:
    """What became of each schema: as `judged`, or `refused`."""
    verdicts: list[str] = []
    for start in range(0, len(schemas), AT_ONCE):
        together = schemas[start : start + AT_ONCE]
        handles = [_submitted(llm, schema, way, tokens) for schema in together]
        for schema, handle in zip(together, handles, strict=True):
            text = "" if handle is None else handle.result().outputs[0].text
            verdicts.append("refused" if handle is None else judged(schema, text))
            if verdicts[-1] in ("unfinished", "invalid"):
                print(f"{way}, {verdicts[-1]}: {schema['title']}: {text!r}", flush=True)
    return verdicts


def _submitted(llm: LLM, schema: Schema, way: str, tokens: int) -> Handle[RequestOutput] | None:
    used = as_before(schema) if way == "before" else schema
    asked = {"role": "user", "content": f"Give me {schema['title']} as JSON."}
    try:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            structured_outputs=StructuredOutputsParams(json=used),
        )
        return llm.submit(llm.chat_prompt([asked]), params)
    except InvalidRequest as error:
        print(f"{way}, refused: {schema['title']}: {error}", flush=True)
        return None


def main() -> None:
    """Ask both ways, and print the shares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    asked = parser.parse_args()
    schemas = sample_of(all_schemas(), min(asked.count, COUNT))
    found: dict[str, dict[str, float]] = {}
    with LLM(None) as llm:
        for way in WAYS:
            counts = Counter(answered(llm, schemas, way, asked.tokens))
            taken = len(schemas) - counts["refused"]
            found[way] = {**counts, "share_valid": round(counts["valid"] / max(taken, 1), 3)}
            print(f"{way:<7} {len(schemas)} schemas: {dict(counts)}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
