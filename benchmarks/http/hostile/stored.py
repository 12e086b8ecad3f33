"""Attacks on what agents use: Responses that are stored, their events, and Messages with tools."""

import itertools
import json
import random
from typing import Any

from benchmarks.http.hostile.attack import Attack, Bounds, Setup, Target, connected, crowd
from benchmarks.http.wire import Connection, Json
from jitney.server.openai_responses.limits import KEPT_MAX

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
NEIGHBOUR_KEY = "the-key-of-a-bystander"
MODEL = "claude-sonnet-4-5"
"""Any model answers to the names of Anthropic's."""

KEEPING = Setup(keeps_answers=True)
TOOLS = 128
SCHEMA_DEPTH = 2
"""With so many tools a prompt of about 55,000 tokens."""

KEPT_S = 240.0
SCORED_S = 180.0
READ_S_MAX = 150.0
FEEDS = 64
LONG_TOKENS = 2000
SCORED_TOKENS = 4000
"""With twenty logprobs each, and four times at its end: 20 MB."""

READERS, SCORED_STREAMS = 40, 4
_TAKES_SLOTS = "the attacker's own requests take slots, and a new one may wait for its turn"
SLOTS_TAKEN = Bounds(chat_ms=None, because=_TAKES_SLOTS)


async def foreign_ids(target: Target) -> None:
    """Whatever is asked of another key's response, by its id: to this key it is not there."""
    response_id = str((await _made(target, NEIGHBOUR_KEY))["id"])
    path = f"{RESPONSES}/{response_id}"
    behind = json.dumps({**_asked(), "previous_response_id": response_id}).encode()
    asked = (
        (f"GET {path}", b""),
        (f"GET {path}?stream=true&starting_after=0", b""),
        (f"GET {path}/input_items", b""),
        (f"POST {path}/cancel", b""),
        (f"DELETE {path}", b""),
        (f"POST {RESPONSES}", behind),
    )

    async def one(number: int) -> None:
        line, body = asked[number % len(asked)]
        told = await target.ask(line, body)
        if told not in ("404", "429"):
            target.faults.append(f"{line.split()[0]} of another key's response is told {told}")

    await crowd(12, one, times=100)
    if (await _of(target, NEIGHBOUR_KEY, path)).get("id") != response_id:
        target.faults.append("the neighbour's response is gone")


async def many_tools(target: Target) -> None:
    """128 tools of large schemas, of which one must be called, in both protocols."""
    schema = _nested(SCHEMA_DEPTH)
    names = [f"tool_{number}" for number in range(TOOLS)]
    functions = [{"type": "function", "name": each, "parameters": schema} for each in names]
    tools = [{"name": each, "input_schema": schema} for each in names]
    bodies: list[tuple[str, Json]] = [
        (RESPONSES, {**_asked(), "tools": functions, "tool_choice": "required"}),
        (RESPONSES, {**_asked(), "tools": functions * 100}),
        (MESSAGES, {**_message(), "tools": tools, "tool_choice": {"type": "any"}}),
        (MESSAGES, {**_message(), "tools": tools * 100}),
    ]
    await crowd(4, lambda number: target.post(*bodies[number]))


async def deep_bodies(target: Target) -> None:
    """Items, blocks and schemas within one another, as deep as a body is long, and less."""
    bodies: list[tuple[str, bytes]] = []
    for depth in (50, 100_000):
        lists = b"[" * depth + b"]" * depth
        schema = b'{"properties": {"a":' * depth + b"{}" + b"}}" * depth
        tool = b'{"type": "function", "name": "f", "parameters": %b}' % schema
        used = b'{"name": "f", "input_schema": %b}' % schema
        begun = b'{"model": "%b", "max_tokens": 1, "messages": [{"role": "user", "content": %b}]'
        name = MODEL.encode()
        bodies += [
            (RESPONSES, b'{"input": [{"role": "user", "content": %b}]}' % lists),
            (RESPONSES, b'{"input": "x", "tools": [%b], "max_output_tokens": 1}' % tool),
            (MESSAGES, begun % (name, lists) + b"}"),
            (MESSAGES, begun % (name, b'"x"') + b', "tools": [%b]}' % used),
        ]
    requests = [target.request(f"POST {path}", body) for path, body in bodies]
    await crowd(len(requests), lambda number: target.send(requests[number]))


async def kept_answers(target: Target) -> None:
    """More answers than one key may keep: the oldest go, and a neighbour's stays."""
    theirs = (await _made(target, NEIGHBOUR_KEY))["id"]
    first = (await _made(target, target.key))["id"]
    numbers, body = itertools.count(), {**_asked(), "max_output_tokens": 1}

    async def one(_: int) -> None:
        connection = await Connection.open(target.port, target.key)
        for _ in itertools.takewhile(lambda number: number < KEPT_MAX + 100, numbers):
            target.told[str((await connection.post(RESPONSES, body)).status)] += 1
        connection.close()

    await crowd(16, one, times=1)
    last = (await _made(target, target.key))["id"]
    for key, response_id, is_there in (
        (NEIGHBOUR_KEY, theirs, True),
        (target.key, first, False),
        (target.key, last, True),
    ):
        found = (await _of(target, key, f"{RESPONSES}/{response_id}")).get("id")
        if (found == response_id) != is_there:
            target.faults.append(f"a response that {'is kept is gone' if is_there else 'is over'}")


async def feeds_left(target: Target) -> None:
    """Readers of one running answer that leave after their first bytes, over and over."""
    body = {**_asked(), "max_output_tokens": LONG_TOKENS}
    body |= {"background": True, "ignore_eos": True}
    path = f"{RESPONSES}/{(await _made(target, target.key, body))['id']}?stream=true"
    request = target.request(f"GET {path}")

    async def one(_: int) -> None:
        async with connected(target) as (reader, writer):
            writer.write(request)
            target.told["left" if await reader.read(512) else "closed"] += 1

    await crowd(FEEDS, one)


async def feeds_from_anywhere(target: Target) -> None:
    """The events of a long answer, asked for from any number on by many."""
    body = {**_asked(), "max_output_tokens": LONG_TOKENS, "ignore_eos": True}
    path = f"{RESPONSES}/{(await _made(target, target.key, body))['id']}?stream=true"
    chosen = random.Random(1)

    async def one(_: int) -> None:
        after = chosen.choice((-1, chosen.randrange(LONG_TOKENS), 2**53))
        await target.ask(f"GET {path}&starting_after={after}")

    await crowd(16, one)


async def feeds_with_logprobs(target: Target) -> None:
    """The events of a long answer with logprobs, and its end alone, asked for by many."""
    path = f"{RESPONSES}/{(await _made(target, target.key, _scored()))['id']}?stream=true"

    async def one(number: int) -> None:
        after = (-1, 2**53)[number % 2]
        await target.send(target.request(f"GET {path}&starting_after={after}"), READ_S_MAX)

    await crowd(READERS, one, times=1)


async def ends_with_logprobs(target: Target) -> None:
    """Streams with logprobs, whose last events have all of them."""
    body = json.dumps({**_scored(), "stream": True}).encode()
    request = target.request(f"POST {RESPONSES}", body)
    await crowd(SCORED_STREAMS, lambda _: target.send(request, READ_S_MAX), times=1)


def _scored() -> Json:
    body = {**_asked(), "max_output_tokens": SCORED_TOKENS, "ignore_eos": True, "top_logprobs": 20}
    return {**body, "include": ["message.output_text.logprobs"]}


def _asked() -> Json:
    return {"input": "Which bus?", "max_output_tokens": 4}


def _message() -> Json:
    asked = [{"role": "user", "content": "Which bus?"}]
    return {"model": MODEL, "messages": asked, "max_tokens": 4}


def _nested(depth: int) -> Any:  # Any: a JSON schema
    schema: Json = {"type": "string"}
    for number in range(depth):
        kinds = {"enum": [f"choice {each}" for each in range(8)]}
        schema = {"type": "object", "properties": {"inner": schema, f"kind{number}": kinds}}
    return schema


async def _made(target: Target, key: str, body: Json | None = None) -> Json:
    """A response of this key."""
    connection = await Connection.open(target.port, key)
    try:
        return (await connection.post(RESPONSES, body or _asked())).json()
    finally:
        connection.close()


async def _of(target: Target, key: str, path: str) -> Json:
    connection = await Connection.open(target.port, key)
    try:
        return (await connection.get(path)).json()
    finally:
        connection.close()


ATTACKS = (
    Attack(
        name="foreign-ids",
        text="another key's response, read, followed, continued, cancelled, deleted",
        run=foreign_ids,
        setup=KEEPING,
        seconds=20.0,
    ),
    Attack(
        name="tools-128",
        text="128 tools of large schemas, one enforced, and 12,800; both protocols",
        run=many_tools,
        setup=Setup(flags=("--max-model-len", "65536")),
        seconds=12.0,
        bounds=Bounds(
            chat_ms=None,
            memory_mib=60.0,
            because="its own requests take slots, and compiled constraints are kept",
        ),
    ),
    Attack(
        name="deep-items",
        text="items, blocks and schemas 50 and 100,000 deep; both protocols",
        run=deep_bodies,
    ),
    Attack(
        name="feeds-left",
        text="64 readers of a background response that leave at once, over and over",
        run=feeds_left,
        setup=KEEPING,
        seconds=8.0,
    ),
    Attack(
        name="feeds-anywhere",
        text="a stored answer of 2,000 tokens, from any number on, sixteen at once",
        run=feeds_from_anywhere,
        setup=KEEPING,
        seconds=30.0,
    ),
    Attack(
        name="feeds-logprobs",
        text="a stored answer of 4,000 tokens with 20 logprobs each, read by forty at once",
        run=feeds_with_logprobs,
        setup=KEEPING,
        seconds=SCORED_S,
    ),
    Attack(
        name="ends-logprobs",
        text="four streams of 4,000 tokens with 20 logprobs each, to their ends",
        run=ends_with_logprobs,
        setup=KEEPING,
        seconds=SCORED_S,
        bounds=Bounds(
            memory_mib=150.0,
            because="what is stored at an end are objects until then, and Python keeps their room",
        ),
    ),
    Attack(
        name="kept-10000",
        text="10,100 stored answers of one key, sixteen at once",
        run=kept_answers,
        setup=KEEPING,
        seconds=KEPT_S,
        bounds=SLOTS_TAKEN,
        is_usual=False,
    ),
)
