"""The load of the soak: every kind of call that a server meets, each with an end that is known.

A call ends well, is refused with a time to come back, is left by its client, or is a fault; a
fault is a sentence. On the fake backend texts are known to the byte.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.http.ledger import PATH, Account, Case, Crowd, Leave, make_cases
from benchmarks.http.wire import Connection, Json, Reply

CHAT = "/v1/chat/completions"
KEYS = ("key-of-first", "key-of-second")
CALL_S_MAX = 120.0
"""No call may take longer, whatever fails meanwhile: one that does was lost."""

LONG_TOKENS = 2500
REFUSALS = frozenset({429, 503})
TOOL = {
    "type": "function",
    "function": {
        "name": "stop_at",
        "parameters": {
            "type": "object",
            "properties": {"line": {"type": "integer"}, "is_express": {"type": "boolean"}},
            "required": ["line", "is_express"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "seats": {"type": "integer"}},
    "required": ["colour", "seats"],
    "additionalProperties": False,
}
WRONG: tuple[tuple[str, Json, int], ...] = (
    (PATH, {"prompt": "a", "max_tokens": -1}, 400),
    (PATH, {"prompt": "a", "temperature": "warm"}, 400),
    (PATH, {"prompt": ["a"] * 500}, 400),
    (PATH, {"prompt": [1] * 5000, "max_tokens": 4}, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "no_such_field": 1}, 400),
    (PATH, {"prompt": "a", "model": "no-such-model"}, 404),
    ("/v1/nothing", {}, 404),
)


@dataclass(slots=True)
class Load:
    """All clients of a soak, and how every call ended."""

    port: int
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    is_over: bool = False
    _cases: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def client(self, number: int) -> None:
        """One client: random calls, one after the other, until all is over."""
        draw = random.Random(number)
        while not self.is_over:
            name = draw.choices(list(_CALLS), [weight for weight, _ in _CALLS.values()])[0]
            self.ends["begun"] += 1
            try:
                async with asyncio.timeout(CALL_S_MAX):
                    end = await _CALLS[name][1](self, draw)
            except (OSError, EOFError, ValueError, KeyError) as error:
                end = f"{type(error).__name__}: {error}"
            if end in ("well", "refused", "left"):
                self.ends[end] += 1
            else:
                self.ends["fault"] += 1
                self.faults.append(f"{name}: {end[:400]}")

    def case(self) -> Case:
        """A request that nobody else makes, and the answer to it."""
        return make_cases(1, seed=next(self._cases))[0]


async def _stream(load: Load, draw: random.Random) -> str:
    return await _asked(load, draw, None)


async def _leave(load: Load, draw: random.Random) -> str:
    return await _asked(load, draw, Leave(draw.randint(1, 12), 2.0, draw.random() < 0.5))


async def _asked(load: Load, draw: random.Random, leave: Leave | None) -> str:
    crowd = Crowd(load.port, key=draw.choice(KEYS))
    case = load.case()
    case.body["priority"] = draw.choice(("low", "normal", "high"))
    await crowd.serve([case], [leave])
    (account,) = crowd.accounts
    if account.status in REFUSALS:
        return "refused"
    fault = account.fault()
    if fault is not None:
        return fault
    return "left" if account.has_left and not account.terminals else "well"


async def _whole(load: Load, draw: random.Random) -> str:
    """As a stream, in one piece."""
    case = load.case()
    body = {name: value for name, value in case.body.items() if not name.startswith("stream")}
    reply = await _post(load, draw, PATH, body)
    if reply.status != 200:
        return _refusal(reply)
    account, told = Account(case, reply.status), reply.json()
    account.ids.add(told["id"])
    account.text = told["choices"][0]["text"]
    account.finishes.append(told["choices"][0]["finish_reason"])
    account.usages.append(told["usage"])
    account.terminals = 1
    return account.fault() or "well"


async def _long(load: Load, draw: random.Random) -> str:
    prompt = draw.choices(range(97, 123), k=draw.randint(500, LONG_TOKENS))
    reply = await _post(load, draw, PATH, {"prompt": prompt, "max_tokens": 8, "ignore_eos": True})
    if reply.status != 200:
        return _refusal(reply)
    usage = reply.json()["usage"]
    told = usage["prompt_tokens"], usage["completion_tokens"]
    return "well" if told == (len(prompt), 8) else f"usage {told} for {len(prompt)} and 8"


async def _tools(load: Load, draw: random.Random) -> str:
    body = {"tools": [TOOL], "tool_choice": "required", **_chat(draw)}
    reply = await _post(load, draw, CHAT, body)
    if reply.status != 200:
        return _refusal(reply)
    choice = reply.json()["choices"][0]
    if choice["finish_reason"] == "length":
        return "well"
    called = choice["message"]["tool_calls"][0]["function"]
    is_right = set(json.loads(called["arguments"])) == {"line", "is_express"}
    return "well" if is_right else f"another call: {called}"


async def _schema(load: Load, draw: random.Random) -> str:
    # Half of the schemas were never seen before, so that they are compiled.
    schema = {**SCHEMA, "description": str(draw.random())} if draw.random() < 0.5 else SCHEMA
    wanted = {"type": "json_schema", "json_schema": {"name": "bus", "schema": schema}}
    reply = await _post(load, draw, CHAT, {"response_format": wanted, **_chat(draw)})
    if reply.status != 200:
        return _refusal(reply)
    choice = reply.json()["choices"][0]
    if choice["finish_reason"] == "length":
        return "well"
    made = json.loads(choice["message"]["content"])
    return "well" if set(made) == {"colour", "seats"} else f"another object: {made}"


async def _wrong(load: Load, draw: random.Random) -> str:
    path, body, status = draw.choice(WRONG)
    reply = await _post(load, draw, path, body)
    if reply.status in REFUSALS:
        return _refusal(reply)
    is_error = set(reply.json()["error"]) == {"message", "type", "param", "code"}
    return "well" if reply.status == status and is_error else f"{body} got {reply.status}"


async def _stranger(load: Load, draw: random.Random) -> str:
    connection = await Connection.open(load.port, "not-a-key-of-ours")
    reply = await connection.post(PATH, {"prompt": "a"})
    connection.close()
    return "well" if reply.status == 401 else f"a stranger got {reply.status}"


_CALLS: Mapping[str, tuple[int, Callable[[Load, random.Random], Awaitable[str]]]] = {
    "stream": (40, _stream),
    "whole": (20, _whole),
    "leave": (12, _leave),
    "long": (6, _long),
    "tools": (5, _tools),
    "schema": (5, _schema),
    "wrong": (10, _wrong),
    "stranger": (2, _stranger),
}


def _chat(draw: random.Random) -> Json:
    messages = [{"role": "user", "content": f"Which bus goes to stop {draw.randrange(10**6)}?"}]
    return {"messages": messages, "max_tokens": 48, "seed": draw.randrange(2**31)}


def _refusal(reply: Reply) -> str:
    if reply.status in REFUSALS and "retry-after" in reply.head.headers:
        return "refused"
    return f"{reply.status}: {reply.body[:300]!r}"


async def _post(load: Load, draw: random.Random, path: str, body: Json) -> Reply:
    connection = await Connection.open(load.port, draw.choice(KEYS))
    try:
        return await connection.post(path, body)
    finally:
        connection.close()
