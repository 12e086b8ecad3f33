"""Attacks by the body of a request: its size, its shape, its characters."""

import json

from benchmarks.http.hostile.attack import Attack, Bounds, Setup, Target, crowd

BODY_BYTES = 9_900_000
"""More than is taken by default, unless the model's context is long."""

TAKEN_BYTES = 2_000_000
VALUES = 131_072
"""Below the least that --body-limit is by default, and the values that such a body may have."""

PIECE_BYTES = 12
"""Of a text for each token of the context: more is refused before it is looked at."""

LARGE_BYTES = 9_000_000
LARGE = Setup(flags=("--body-limit", "10MB"))
"""As for a model with a context of 300,000 tokens."""

LARGE_BOUNDS = Bounds(memory_mib=160.0, because="the system's allocator keeps what bodies took")

_ARRAYS = (
    (b"1234567890123,", 620_000),
    (b"1,", 4_490_000),
    (b"1.25e3,", 620_000),
    (b"[],", 2_990_000),
    (b"[1,2,3,4,5],", 99_000),
    (b"[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19],", 32_000),
    (b'{"a":1,"b":2},', 99_000),
    (b'{"a":1,"b":2},', 32_000),
    (b'"12345678",', 620_000),
    (b'"12345678",', 130_000),
)
"""Values, and how many of them."""

_COMPLETIONS = "POST /v1/completions"
_CHAT = "POST /v1/chat/completions"


async def json_10mb(target: Target) -> None:
    """Eight at once: two million small numbers in each."""
    request = target.request(_COMPLETIONS, _numbers(b'{"prompt": ['))
    await crowd(8, lambda number: target.send(request))


async def json_one_10mb(target: Target) -> None:
    """One at a time of the same."""
    request = target.request(_COMPLETIONS, _numbers(b'{"prompt": ['))
    await crowd(1, lambda number: target.send(request))


async def arrays_9mb(target: Target) -> None:
    """Ten at once, where that is taken: as many values of each kind as may be, or too many."""
    bodies = []
    for shape, count in _ARRAYS:
        room = b" " * max(0, LARGE_BYTES - count * len(shape))
        bodies.append(b'{"prompt": [' + shape * count + room + b"1]}")
    requests = [target.request(_COMPLETIONS, body) for body in bodies]
    await crowd(len(requests), lambda number: target.send(requests[number]))


async def tokens_9mb(target: Target) -> None:
    """Ten at once of the longest list of numbers that may be."""
    shape, count = _ARRAYS[0]
    request = target.request(_COMPLETIONS, b'{"prompt": [' + shape * count + b"1]}")
    await crowd(10, lambda number: target.send(request))


async def texts_2mb(target: Target) -> None:
    """Eight bodies that are as long as may be, in prompts that are."""
    body = json.dumps({"prompt": ["x" * 16_000] * (TAKEN_BYTES // 16_004)}).encode()
    request = target.request(_COMPLETIONS, body)
    await crowd(8, lambda number: target.send(request))


async def values_131k(target: Target) -> None:
    """Eight bodies with as many values as one may have."""
    body = b'{"prompt": [' + b"1," * (VALUES - 10) + b"1]}"
    request = target.request(_COMPLETIONS, body)
    await crowd(8, lambda number: target.send(request))


async def deep_json(target: Target) -> None:
    """Lists within lists, and objects within objects, as deep as a body is long."""
    lists = b'{"prompt": ' + b"[" * (BODY_BYTES // 4)
    objects = b'{"prompt": ' + b'{"a":' * 60_000
    closed = b'{"prompt": ' + b"[" * 60 + b"]" * 60 + b"}"
    requests = [target.request(_COMPLETIONS, body) for body in (lists, objects, closed)]
    await crowd(3, lambda number: target.send(requests[number]))


async def many_keys(target: Target) -> None:
    """100,000 keys in one object, and 1,000 objects of 100."""
    wide = json.dumps({f"k{number}": 1 for number in range(100_000)}).encode()
    shared = {f"k{number}": 1 for number in range(100)}
    many = json.dumps({"prompt": "x", "messages": [shared] * 1000}).encode()
    requests = [target.request(_CHAT, body) for body in (wide, many)]
    await crowd(2, lambda number: target.send(requests[number]))


async def many_containers(target: Target) -> None:
    """A million empty lists."""
    body = b'{"prompt": [' + b"[]," * 1_000_000 + b"[]]}"
    request = target.request(_COMPLETIONS, body)
    await crowd(2, lambda number: target.send(request))


async def unicode_bombs(target: Target) -> None:
    """Characters that grow: escapes, halves of pairs, marks on marks, the largest of all."""
    texts = (
        "\\ud83d\\ude00" * 100_000,
        "\\ud83d" * 100_000,
        "a" + "\\u0301" * 150_000,
        "\\ufdfa" * 150_000,
        "\\U0010ffff" * 10,
        "\\udbff\\udffd" * 80_000,
    )
    bodies = [
        b'{"max_tokens": 1, "messages": [{"role": "user", "content": "%b"}]}' % text.encode()
        for text in texts
    ]
    requests = [target.request(_CHAT, body) for body in bodies]
    await crowd(len(requests), lambda number: target.send(requests[number]))


async def tokenize_controls(target: Target) -> None:
    """The end token's name, 160 KB of it, to each of four threads."""
    request = target.request("POST /tokenize", _controls(target))
    await crowd(4, lambda number: target.send(request))


async def chat_controls(target: Target) -> None:
    """The same as the message of a chat."""
    request = target.request(_CHAT, _controls(target))
    await crowd(4, lambda number: target.send(request))


async def tokenize_largest(target: Target) -> None:
    """The largest texts that there may be in a body, and in a context."""
    sizes = (BODY_BYTES, PIECE_BYTES * target.model_len)
    texts = ["a bus on the road " * (size // 18 - 2) for size in sizes]
    requests = [
        target.request("POST /tokenize", json.dumps({"prompt": text}).encode()) for text in texts
    ]
    await crowd(4, lambda number: target.send(requests[number % 2]))


async def detokenize_largest(target: Target) -> None:
    """The most tokens that there may be."""
    request = target.request("POST /detokenize", _numbers(b'{"tokens": [', 1_990_000))
    await crowd(4, lambda number: target.send(request))


def _numbers(beginning: bytes, count: int = BODY_BYTES // 3) -> bytes:
    return beginning + b"65," * count + b"65]}"


def _controls(target: Target) -> bytes:
    """Messages full of the end token's name, as much of it as the door lets in."""
    part = "x" + target.end_name
    text = part * (min(160_000, PIECE_BYTES * target.model_len) // len(part) - 10)
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


ATTACKS = (
    Attack(name="json-10mb-x8", text="eight bodies of 10 MB of numbers", run=json_10mb),
    Attack(name="json-10mb", text="bodies of 10 MB, one at a time", run=json_one_10mb),
    Attack(
        name="arrays-9mb-x10",
        text="ten bodies of 9 MB of numbers, texts, lists and objects",
        run=arrays_9mb,
        setup=LARGE,
        bounds=LARGE_BOUNDS,
        seconds=8.0,
    ),
    Attack(
        name="tokens-9mb-x10",
        text="ten bodies of 620,000 numbers",
        run=tokens_9mb,
        setup=LARGE,
        bounds=LARGE_BOUNDS,
        seconds=8.0,
    ),
    Attack(name="texts-2mb-x8", text="eight bodies of 2 MB of prompts", run=texts_2mb),
    Attack(name="values-131k", text="eight bodies of 131,000 numbers", run=values_131k),
    Attack(name="deep-json", text="lists and objects nested millions deep", run=deep_json),
    Attack(name="keys-100k", text="100,000 keys in one object", run=many_keys),
    Attack(name="containers-1m", text="a million empty lists", run=many_containers),
    Attack(name="unicode-bombs", text="text that grows or breaks when read", run=unicode_bombs),
    Attack(
        name="tokenize-controls",
        text="four /tokenize bodies of 160 KB made of control tokens' names",
        run=tokenize_controls,
        seconds=8.0,
    ),
    Attack(name="chat-controls", text="the same as messages of a chat", run=chat_controls),
    Attack(name="tokenize-largest", text="/tokenize of 10 MB, four", run=tokenize_largest),
    Attack(name="detokenize-largest", text="/detokenize of 2m, four", run=detokenize_largest),
)
