"""An agent's conversation with a prompt of 24,000 tokens, three turns of it, beside a stream.

The fake backend takes as long as a model would. Told are the first token of each turn, the prompt
tokens that were computed for it, and how long the stream beside it stood still meanwhile.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator

from benchmarks.http.paced import program
from benchmarks.http.report import Report
from benchmarks.http.served import served
from benchmarks.http.wire import DONE, Connection, Json

TICK_MS, TOKEN_US = 20.0, 200.0
"""As a processor with a small model has it: 5,000 tokens of a prompt in a second."""

PROMPT_TOKENS = 24_000
NEWS_TOKENS = 200
ANSWER_TOKENS = 64
GAP_MS_MAX = 250.0
CALM_S = 3.0
COMPUTED_MAX = 1000
"""Of a later turn: its news, the answer before it, and what the template writes."""

FLAGS = ("--backend", "fake", "--max-model-len", "32768", "--kv-tokens", "131072")
PATH = "/v1/chat/completions"


class Beside:
    """A stream that never ends, and the worst gap in it."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._worst_s = 0.0

    async def read(self, port: int) -> None:
        """Read it."""
        body = _body([{"role": "user", "content": "A calm ride."}], 30_000)
        # Always one letter: a half of a character would wait for the other one, and seem a gap.
        async for _ in _events(port, {**body, "logit_bias": {ord("a"): 100}}):
            now = time.perf_counter()
            self._worst_s, self._at = max(self._worst_s, now - self._at), now

    def taken_ms(self) -> float:
        """The worst gap since the last time."""
        worst_s, self._worst_s = max(self._worst_s, time.perf_counter() - self._at), 0.0
        return worst_s * 1e3


def turns(report: Report) -> None:
    """Three turns of an agent with 24,000 tokens, and what a stream beside them notices."""
    jitney = program(TICK_MS, TOKEN_US, ends=False)
    with served(*FLAGS, program=jitney) as server:
        asyncio.run(_turns(server.port, report))


async def _turns(port: int, report: Report) -> None:
    beside = Beside()
    reading = asyncio.create_task(beside.read(port))
    await asyncio.sleep(CALM_S)
    beside.taken_ms()
    await asyncio.sleep(CALM_S)
    report.say(f"calm: gap {beside.taken_ms():.0f} ms")
    messages: list[Json] = []
    for turn, length in enumerate((PROMPT_TOKENS, NEWS_TOKENS, NEWS_TOKENS), 1):
        messages.append({"role": "user", "content": _letters(turn, length)})
        first_s, answer, usage = await _turn(port, messages)
        messages.append({"role": "assistant", "content": answer})
        gap_ms = beside.taken_ms()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        computed = usage["prompt_tokens"] - cached
        report.say(
            f"turn {turn}: first token {first_s:.2f} s; of {usage['prompt_tokens']} prompt tokens "
            f"{computed} computed; gap of the stream beside it {gap_ms:.0f} ms"
        )
        report.figure(f"turn_{turn}", {"first_s": first_s, "computed": computed, "gap_ms": gap_ms})
        report.check(f"turn {turn}: the gap is below {GAP_MS_MAX:g} ms", gap_ms < GAP_MS_MAX)
        if turn > 1:
            report.check(f"turn {turn}: only what is new is computed", computed < COMPUTED_MAX)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading


async def _turn(port: int, messages: list[Json]) -> tuple[float, str, Json]:
    """Seconds to the first token, the answer, and the usage."""
    started, first_s, answer = time.perf_counter(), 0.0, ""
    async for event in _events(port, _body(messages, ANSWER_TOKENS)):
        for choice in event["choices"]:
            text = choice["delta"].get("content") or ""
            if text and not answer:
                first_s = time.perf_counter() - started
            answer += text
        if event.get("usage"):
            return first_s, answer, event["usage"]
    raise EOFError("a stream without usage")


async def _events(port: int, body: Json) -> AsyncIterator[Json]:
    connection = await Connection.open(port)
    try:
        head = await connection.begin(PATH, body)
        assert head.status == 200, head
        async for event in connection.events():
            if event != DONE:
                yield json.loads(event)
    finally:
        connection.close()


def _body(messages: list[Json], max_tokens: int) -> Json:
    asked: Json = {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
    return {**asked, "stream": True, "stream_options": {"include_usage": True}}


def _letters(seed: int, count: int) -> str:
    """A text of so many tokens, as each of these letters is one for the fake backend."""
    return "".join(random.Random(seed).choices("abcdefghijklm", k=count))
