"""Grammars and schemas of strangers, by the numbered rows 27 to 30 of expected answers."""

import json
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import Running, World, bait, check_error
from tests.e2e.server.processes import backend_of, memory_bytes, served

GROWTH_BYTES_MAX = 64 * 2**20
CACHED_MAX = 30
"""Constraints that a server keeps here, so that few schemas are more than it keeps."""


@pytest.fixture(autouse=True)
def _idle_after(server: Running) -> Iterator[None]:
    yield
    server.check_idle()


def nested(depth: int) -> str:
    """The schema of objects that each hold the next one, with so many levels."""
    inner = '"required":["a"],"additionalProperties":false,"properties":{"a":'
    return ('{"type":"object",' + inner) * depth + '{"type":"object"}' + "}}" * depth


def chain(count: int, end: str) -> str:
    """A grammar of so many rules, each of which is the next one."""
    rules = "\n".join(f"r{at} ::= r{at + 1}" for at in range(count))
    return f"root ::= r0\n{rules}\n{end}"


GRAMMARS = [
    "root ::= ( [x]* )*",
    'root ::= "a"{1,999999999}',
    "root ::= " + '"a" | ' * 3000 + '"b"',
    'start: "a" start',
    "root ::= " + '"a" | ' * 60_000 + '"b"',
    chain(2000, 'r2000 ::= "a"'),
    chain(10_000, ""),
    'root ::= "' + "a" * 1_000_000 + '"',
]


def explosion(letters: str) -> dict[str, Any]:
    """A schema of which the compiler would make an automaton with more states than there are."""
    return {"allOf": [{"type": "string", "pattern": f"^.*k{each * 7}.*$"} for each in letters]}


EXPLOSION = explosion(string.ascii_letters + string.digits)

SCHEMAS: list[Any] = [
    {"$ref": "#"},
    {"type": "string", "pattern": "^((a+)+)+$"},
    {"enum": [f"value {at}" for at in range(10_000)]},
    {"type": "string", "minLength": 10**9},
    json.loads(nested(20)),
    json.loads(nested(60)),
    *(nested(depth) for depth in (60, 300, 5000)),
    EXPLOSION,
]
"""What is made to hurt; tests/unit/sampling/test_constraint.py has what is refused, and why."""


@pytest.mark.parametrize("grammar", ["root ::= (", 'x ::= "a"', "root ::= root", "start: (", ""])
def test_row_27_grammars_that_are_none(server: Running, grammar: str) -> None:
    """Guards the compiler: one request fails, and says why."""
    error = check_error(server.complete(structured_outputs={"grammar": grammar}), 400)
    assert error["param"] == "structured_outputs"


def test_rows_28_and_29_memory_of_what_is_made_to_hurt(tmp_path: Path) -> None:
    """Guards the machine: neither the server nor its backend grows by it, and neither dies."""
    hostile = [{"grammar": each} for each in GRAMMARS] + [{"json": each} for each in SCHEMAS]
    with served(tmp_path) as server:
        worker = backend_of(server.popen.pid)

        def ask(constraint: dict[str, Any]) -> int:
            body = {"prompt": "a", "max_tokens": 8, "structured_outputs": constraint}
            return server.client.post("/v1/completions", json=body).status_code

        # The first constraint of all builds tables that stay.
        assert ask({"grammar": 'root ::= "a"'}) == 200
        before = memory_bytes(server.popen.pid) + memory_bytes(worker)
        for constraint in hostile * 2:
            assert ask(constraint) in (200, 400)
        assert backend_of(server.popen.pid) == worker, "the backend died of it"
        grown = memory_bytes(server.popen.pid) + memory_bytes(worker) - before
        assert grown < GROWTH_BYTES_MAX
        assert server.is_well()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "hiccup"},
        {"type": 123},
        {"type": "string", "pattern": "^[a-$("},
        {"type": "object", "properties": {"a": {"type": 123}}},
    ],
)
def test_row_29_schemas_that_cannot_be_enforced(server: Running, schema: dict[str, Any]) -> None:
    """Guards the promise: what cannot be enforced is refused, wherever the schema stands."""
    check_refused_everywhere(server, schema)


@pytest.mark.parametrize("is_inside", [False, True])
def test_row_29_schemas_that_point_elsewhere(server: Running, is_inside: bool) -> None:
    """Guards the network: a schema that stands elsewhere is refused, and never fetched."""
    with bait() as caught:
        schema: dict[str, Any] = {"$ref": f"http://127.0.0.1:{caught.port}/schema.json"}
        if is_inside:
            schema = {"type": "object", "properties": {"a": schema}}
        check_refused_everywhere(server, schema)
        assert not caught.was_called()


def check_refused_everywhere(server: Running, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    check_error(server.chat(response_format=form), 400, "response_format")
    check_error(server.complete(structured_outputs={"json": schema}), 400, "structured_outputs")
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for choice in ("required", "auto", "none", None):
        error = check_error(server.chat(tools=[tool], tool_choice=choice), 400, "tools")
    assert "function f" in error["message"]


def test_row_29_tools_as_clients_write_them(server: Running) -> None:
    """Guards ordinary clients: titles, defaults, definitions and formats are no mistake."""
    schema = {
        "$defs": {"Unit": {"enum": ["c", "f"], "title": "Unit", "type": "string"}},
        "title": "Weather",
        "type": "object",
        "properties": {
            "city": {"type": "string", "title": "City", "description": "Where."},
            "unit": {"$ref": "#/$defs/Unit", "default": "c"},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "when": {"type": "string", "format": "date-time"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    for choice in ("auto", "none", "required"):
        reply = server.chat(tools=[tool], tool_choice=choice)
        assert reply.status_code == 200, (choice, reply.text)


def test_row_30_many_schemas(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the cache of compiled constraints: it serves as many as come, and writes no file.

    That it is bounded is told by tests/unit/sampling/test_constraint.py.
    """
    monkeypatch.setattr("jitney.sampling.constraint._CACHED_MAX", CACHED_MAX)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    with start(World()).client() as client:
        for at in range(CACHED_MAX + 20):
            schema = {
                "type": "object",
                "properties": {f"x{at}": {"const": at}},
                "required": [f"x{at}"],
                "additionalProperties": False,
            }
            body = {"prompt": "a", "structured_outputs": {"json": schema}, "max_tokens": 64}
            answer = client.post("/v1/completions", json=body)
            assert json.loads(answer.json()["choices"][0]["text"]) == {f"x{at}": at}
    assert list(tmp_path.iterdir()) == []
