"""Attacks by what is asked for: well-formed requests at the limits of every field."""

import asyncio
import itertools
import json
import socket

from benchmarks.http.hostile.attack import (
    Attack,
    Bounds,
    Setup,
    Target,
    connected,
    crowd,
    status_of,
)
from benchmarks.http.wire import Json

PATH = "/v1/completions"
TOKEN = 65
"""A plain token in every vocabulary."""

SHARE_PROMPTS = 30
"""With 16 completions each, within what one of two keys may have in the queue."""

_SLOTS_TAKEN = Bounds(
    chat_ms=None,
    because="the attacker's own requests take slots, and a new one may wait for its turn",
)


async def equal_prompts(target: Target) -> None:
    """Forty with the same long prompt, all at once."""
    tokens = min(8000, target.model_len - 200)
    body = {"prompt": [TOKEN] * (tokens - 1) + [TOKEN + 1], "max_tokens": 16}
    await crowd(40, lambda number: target.post(PATH, body), times=1)


async def different_prompts(target: Target) -> None:
    """Forty long prompts that have nothing in common: what the same work costs without sharing."""
    tokens = min(8000, target.model_len - 200)

    async def one(number: int) -> None:
        await target.post(PATH, {"prompt": [TOKEN + number] * tokens, "max_tokens": 16})

    await crowd(40, one, times=1)


async def few_long_prompts(target: Target) -> None:
    """Five long prompts that differ, again and again: their prefill fills every tick."""
    fresh = itertools.count()

    async def one(number: int) -> None:
        prompt = [TOKEN + (next(fresh) + at * at) % 50 for at in range(target.model_len - 96)]
        await target.post(PATH, {"prompt": prompt, "max_tokens": 1})

    await crowd(5, one)


async def memory_taken(target: Target) -> None:
    """Completions that grow until they hold all memory there is."""

    async def one(number: int) -> None:
        prompt = [TOKEN + (number + at * at) % 50 for at in range(target.model_len // 4)]
        tokens = target.model_len - len(prompt)
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        await target.post(PATH, body)

    await crowd(16, one)


async def critical(target: Target) -> None:
    """Requests of the highest class, as many as there are places."""

    async def one(number: int) -> None:
        prompt = [TOKEN + (number + at * at) % 50 for at in range(1000)]
        body = {"prompt": prompt, "max_tokens": 300, "ignore_eos": True, "priority": "critical"}
        await target.post(PATH, body)

    await crowd(16, one)


async def stop_strings(target: Target) -> None:
    """As many completions as one key may have, each with 16 long stop strings."""
    stops = ["a" * 255 + chr(98 + number) for number in range(16)]
    body = {"prompt": ["x"] * SHARE_PROMPTS, "n": 16, "stop": stops, "max_tokens": 8}
    await crowd(1, lambda number: target.post(PATH, body))


async def stop_strings_running(target: Target) -> None:
    """Streams whose every token is searched for 16 long strings."""
    stops = ["a" * 255 + chr(98 + number) for number in range(16)]
    body = {"prompt": "x", "n": 8, "stop": stops, "max_tokens": 500, "ignore_eos": True}
    await crowd(2, lambda number: target.post(PATH, body))


async def two_calls(target: Target) -> None:
    """64 prompts, 16 completions of each, twice: the whole queue."""
    body = {"prompt": ["x"] * 64, "n": 16, "max_tokens": 200, "ignore_eos": True}
    await crowd(2, lambda number: target.post(PATH, body))


async def share(target: Target) -> None:
    """As much as one key may have in the queue, over and over."""
    body = {"prompt": ["x"] * SHARE_PROMPTS, "n": 16, "max_tokens": 200, "ignore_eos": True}
    await crowd(2, lambda number: target.post(PATH, body))


async def many_completions(target: Target) -> None:
    """n=16, streamed, from four."""
    body = {"prompt": "x", "n": 16, "max_tokens": 200, "stream": True, "ignore_eos": True}
    await crowd(4, lambda number: target.post(PATH, body))


async def logprobs(target: Target) -> None:
    """20 alternatives for each token of 8 completions and of a long prompt."""
    asked = {"prompt": "x" * 400, "n": 4, "max_tokens": 150, "logprobs": 20, "ignore_eos": True}
    bodies: list[Json] = [{**asked, "stream": True}, {**asked, "echo": True}]
    await crowd(2, lambda number: target.post(PATH, bodies[number]))


async def prompt_logprobs(target: Target) -> None:
    """20 alternatives for each token of prompts of 2,000."""
    body = {"prompt": [TOKEN] * 2000, "max_tokens": 1, "logprobs": 20, "echo": True}
    await crowd(4, lambda number: target.post(PATH, body))


async def stalled_logprobs(target: Target) -> None:
    """Streams full of logprobs that nobody reads."""
    asked = {"prompt": "x", "n": 4, "max_tokens": 1000, "logprobs": 20}
    body = {**asked, "stream": True, "ignore_eos": True}
    request = target.request(f"POST {PATH}", json.dumps(body).encode())

    async def one(_: int) -> None:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(made, ("127.0.0.1", target.port))
            await loop.sock_sendall(made, request)
            target.told[status_of(await loop.sock_recv(made, 64))] += 1
            await asyncio.Event().wait()
        finally:
            made.close()

    await crowd(12, one, times=1)


async def logit_bias(target: Target) -> None:
    """1,024 biases on each of 16 completions."""
    count = 300  # the fake vocabulary has not many more; what is unknown would be refused
    bias = {str(token): -1.5 + token % 3 for token in range(count)}
    bodies: list[Json] = [
        {"prompt": "x", "n": 8, "max_tokens": 50, "logit_bias": bias, "ignore_eos": True},
        {"prompt": "x", "logit_bias": {str(token): 1 for token in range(1024)}},
    ]
    await crowd(4, lambda number: target.post(PATH, bodies[number % 2]))


async def context_limit(target: Target) -> None:
    """Prompts that fill the context, each another, and one token too many."""
    full = target.model_len

    async def one(number: int) -> None:
        tokens = full - 1 if number % 4 else full + 1
        await target.post(PATH, {"prompt": [TOKEN + number] * tokens, "max_tokens": 1})

    await crowd(8, one)


async def short_streams(target: Target) -> None:
    """64 streams at once that end and begin again."""
    body = {"prompt": "x", "max_tokens": 20, "stream": True, "ignore_eos": True}
    request = target.request(f"POST {PATH}", json.dumps(body).encode())

    async def one(_: int) -> None:
        async with connected(target) as (reader, writer):
            writer.write(request)
            target.told[status_of(await reader.read(4096))] += 1
            while await reader.read(65_536):
                pass

    await crowd(64, one)


ATTACKS = (
    Attack(
        name="equal-prompts",
        text="forty requests with the same prompt of 8,000 tokens",
        run=equal_prompts,
        seconds=30.0,
    ),
    Attack(
        name="different-prompts",
        text="forty requests with prompts of 8,000 tokens that differ",
        run=different_prompts,
        seconds=30.0,
    ),
    Attack(
        name="few-long-prompts",
        text="five callers with prompts that fill the context, over and over",
        run=few_long_prompts,
        seconds=10.0,
    ),
    Attack(
        name="memory-taken",
        text="sixteen completions that grow until memory is full",
        run=memory_taken,
        seconds=15.0,
    ),
    Attack(
        name="critical",
        text="sixteen callers of class critical, under the policy priority",
        run=critical,
        setup=Setup(flags=("--policy", "priority")),
    ),
    Attack(
        name="stop-strings",
        text="30 prompts x n 16 x 16 stop strings of 255 equal letters and another",
        run=stop_strings,
    ),
    Attack(
        name="stop-strings-running",
        text="16 completions searched for 16 long stop strings",
        run=stop_strings_running,
    ),
    Attack(
        name="queue-in-two-calls",
        text="one key asks for 64 prompts x n 16, twice: a new question of another key must pass",
        run=two_calls,
        seconds=6.0,
    ),
    Attack(
        name="queue-share",
        text="one key keeps its whole share of the queue full: a new question of another must pass",
        run=share,
        seconds=6.0,
    ),
    Attack(
        name="n-16", text="n=16, streamed, from four", run=many_completions, bounds=_SLOTS_TAKEN
    ),
    Attack(name="logprobs-20", text="20 logprobs a token", run=logprobs, bounds=_SLOTS_TAKEN),
    Attack(
        name="prompt-logprobs",
        text="20 logprobs for each token of long prompts",
        run=prompt_logprobs,
        bounds=Bounds(
            chat_ms=None,
            memory_mib=60.0,
            because="its own requests take slots, and replies of 100,000 numbers are made whole",
        ),
    ),
    Attack(
        name="stalled-logprobs",
        text="12 unread streams of four, with 20 logprobs a token",
        run=stalled_logprobs,
        seconds=20.0,
    ),
    Attack(
        name="logit-bias", text="1,024 biases, and 300 on 16", run=logit_bias, bounds=_SLOTS_TAKEN
    ),
    Attack(
        name="context-limit",
        text="prompts that fill the context, eight at once",
        run=context_limit,
    ),
    Attack(
        name="short-streams",
        text="64 short streams",
        run=short_streams,
    ),
)
