"""Attacks by constraints: schemas, regexes and grammars that take for ever to compile or follow."""

import asyncio
import itertools

from benchmarks.http.hostile.attack import Attack, Bounds, Setup, Target, crowd
from benchmarks.http.wire import Json

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_ASKED: Json = {"messages": [{"role": "user", "content": "Answer."}], "max_tokens": 8}


_KEPT = Bounds(memory_mib=256.0, because="compiled constraints are kept, up to 256 MiB")


async def ambiguous(target: Target) -> None:
    """Twelve completions of a grammar that has more readings with each character."""
    grammar = 'start: e "~~~~~~"\ne: e e | /./ | e e e | '
    asked = {**_ASKED, "n": 12, "max_tokens": 500, "structured_outputs": {"grammar": grammar}}
    await crowd(4, lambda number: target.post(CHAT, asked))


async def schema_all_of(target: Target) -> None:
    """A schema of 3 KB that no compiler ends with, from two."""
    await crowd(2, lambda number: target.post(CHAT, _with_schema(_all_of(number))))


async def schema_all_of_crowd(target: Target) -> None:
    """The same from eight, for a bystander who has a schema too."""
    await crowd(8, lambda number: target.post(CHAT, _with_schema(_all_of(number))))


async def schema_all_of_tool(target: Target) -> None:
    """The same as a tool's arguments."""

    async def one(number: int) -> None:
        made = {"name": f"t{number}", "parameters": _object(_all_of(number))}
        tools = [{"type": "function", "function": made}]
        await target.post(CHAT, {**_ASKED, "tools": tools, "tool_choice": "required"})

    await crowd(2, one)


async def new_schemas(target: Target) -> None:
    """1,000 schemas that nobody has seen before, or as many as there is time for."""
    fresh = itertools.count()

    async def one(_: int) -> None:
        names = [f"field_{next(fresh)}" for _ in range(40)]
        properties = {name: {"type": "string", "maxLength": 50} for name in names}
        await target.post(CHAT, _with_schema({"type": "object", "properties": properties}))

    await crowd(4, one, times=250)


async def long_regexes(target: Target) -> None:
    """Regexes as long as they may be, and some that blow up when they are made deterministic."""
    regexes = (
        "(a|b)*a" + "(a|b)" * 5000,
        "|".join(f"word{number}" for number in range(3000)),
        "(x+x+)+y" * 300,
        "(.{1,999}){1,99}z",
    )

    async def one(number: int) -> None:
        await target.post(CHAT, {**_ASKED, "structured_outputs": {"regex": regexes[number]}})

    await crowd(len(regexes), one)


async def growing_grammars(target: Target) -> None:
    """Grammars that are ambiguous without end, or nest without end."""
    grammars = (
        'start: a\na: a a | "x" | ""',
        "start: a0\n" + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(40)) + 'a40: "x"',
        'start: "(" start ")" | start start | "x"',
    )

    async def one(number: int) -> None:
        asked = {"structured_outputs": {"grammar": grammars[number]}, "max_tokens": 500}
        await target.post(CHAT, {**_ASKED, **asked})

    await crowd(len(grammars), one)


async def many_choices(target: Target) -> None:
    """5,000 choices, each time others."""
    fresh = itertools.count()

    async def one(_: int) -> None:
        first = next(fresh)
        choices = [f"choice {first} {number}" for number in range(5000)]
        await target.post(CHAT, {**_ASKED, "structured_outputs": {"choice": choices}})

    await crowd(2, one)


async def deep_schema(target: Target) -> None:
    """A schema that refers to itself, one nested as deep as may be, one with huge bounds."""
    nested: Json = {"type": "string"}
    for _ in range(12):
        nested = {"type": "object", "properties": {"a": nested}, "additionalProperties": False}
    schemas: tuple[Json, ...] = (
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 50}}, "$ref": "#/$defs/a"},
        {"type": "array", "minItems": 100_000, "items": {"type": "integer"}},
        {"type": "string", "minLength": 100_000, "maxLength": 1_000_000},
        nested,
    )
    await crowd(len(schemas), lambda number: target.post(CHAT, _with_schema(schemas[number])))


async def lost_grammars(target: Target) -> None:
    """More compiled grammars wait than are kept; then twelve places become free at once."""
    held = {"prompt": "Hold.", "max_tokens": 4000, "ignore_eos": True}

    async def ask(number: int) -> None:
        asked = {"prompt": "x", "max_tokens": 1, "structured_outputs": {"grammar": _ring(number)}}
        await target.post(COMPLETIONS, asked)

    async with asyncio.TaskGroup() as group:
        holding = [group.create_task(target.post(COMPLETIONS, held)) for _ in range(12)]
        await asyncio.sleep(0.5)
        for number in range(80):
            group.create_task(ask(number))
        await asyncio.sleep(14.0)
        for each in holding:
            each.cancel()


def _ring(number: int, rules: int = 3000) -> str:
    """A grammar of 85 KB, each rule of which goes on to the next."""
    start = " | ".join(f"r{at}" for at in range(rules))
    lines = [f'r{at}: "a{number}{at}" r{(at + 1) % rules}' for at in range(rules)]
    return "\n".join([f"start: {start}", *lines])


def _all_of(number: int) -> Json:
    patterns = [f"^.*k{number}{at:06d}.*$" for at in range(60)]
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


def _object(schema: Json) -> Json:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def _with_schema(schema: Json) -> Json:
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {**_ASKED, "response_format": shape}


ATTACKS = (
    Attack(
        name="schema-allof",
        text="two schemas of 3 KB whose 60 patterns never compile",
        run=schema_all_of,
        seconds=8.0,
    ),
    Attack(
        name="schema-allof-tool",
        text="the same as arguments of tools",
        run=schema_all_of_tool,
        seconds=8.0,
    ),
    Attack(
        name="new-schemas",
        text="1,000 schemas, each a new one, from four",
        run=new_schemas,
        seconds=8.0,
        bounds=_KEPT,
    ),
    Attack(name="long-regexes", text="regexes that grow when compiled", run=long_regexes),
    Attack(name="growing-grammars", text="grammars without end", run=growing_grammars),
    Attack(
        name="ambiguous-grammar",
        text="grammars that take longer at each token, 48 completions",
        run=ambiguous,
        seconds=6.0,
    ),
    Attack(
        name="choices-5000",
        text="5,000 choices, each time others",
        run=many_choices,
        bounds=_KEPT,
    ),
    Attack(
        name="lost-grammars",
        text="80 grammars wait, more than are kept; then 12 are begun at once",
        run=lost_grammars,
        seconds=18.0,
        bounds=_KEPT,
    ),
    Attack(name="deep-schema", text="schemas of themselves, or huge", run=deep_schema),
    Attack(
        name="schema-beside-schemas",
        text="eight that never compile, beside questions with a schema that is compiled",
        run=schema_all_of_crowd,
        seconds=10.0,
        setup=Setup(is_json_wanted=True),
        bounds=Bounds(chat_ms=3000.0, because="one other constraint is compiled first, up to 2 s"),
    ),
)
