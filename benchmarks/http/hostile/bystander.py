"""`python -m benchmarks.http.hostile.bystander PORT KEY QUESTION`: a calm caller, in a process.

It reads one long stream of tokens, asks for /health every 50 ms on a connection that it keeps
(and every tenth time on a new one), and asks its question every 200 ms. For each line on
standard input it writes one of JSON: the worst of each since the line before, what is still under
way included, and how late its own clock was, so that a machine without a free core is not taken
for a server that stands still.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from benchmarks.http.hostile.attack import now
from benchmarks.http.wire import DONE, Connection, Json

HEALTH_S = 0.05
CHAT_S = 0.2
LATE_S = 0.01
NEW_EVERY = 10
REPLY_S_MAX = 30.0
AGAIN_S = 0.05
STREAM = "/v1/completions"
CHAT = "/v1/chat/completions"
FAILURES = (OSError, EOFError, ValueError, TimeoutError)


@dataclass(slots=True)
class Tally:
    """The worst of one thing since it was last asked for, in ms."""

    worst_ms: float = 0.0
    count: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    since: float | None = None
    """When what is under way began."""

    def begin(self) -> None:
        """It begins, unless it is under way."""
        if self.since is None:
            self.since = now()

    def end(self) -> None:
        """It ended well."""
        if self.since is not None:
            self.worst_ms = max(self.worst_ms, (now() - self.since) * 1e3)
            self.count += 1
        self.since = None

    def take(self) -> Json:
        """What there is to tell; counting starts again."""
        under_way_ms = 0.0 if self.since is None else (now() - self.since) * 1e3
        told = {
            "worst_ms": max(self.worst_ms, under_way_ms),
            "count": self.count,
            "failures": dict(self.failures),
        }
        self.worst_ms, self.count, self.failures = 0.0, 0, Counter()
        return told


async def watch(port: int, key: str, question: Json, lines: asyncio.StreamReader) -> None:
    """Until the lines end."""
    chat = partial(_chat, port, key, question)
    tallies = {name: Tally() for name in ("stream", "health", "chat", "late")}
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_again(tallies["stream"], lambda: _stream(port, key, tallies))),
            group.create_task(_again(tallies["health"], lambda: _health(port, tallies["health"]))),
            group.create_task(_again(tallies["chat"], lambda: chat(tallies["chat"]))),
            group.create_task(_late(tallies["late"])),
        ]
        while await lines.readline():
            told = {name: tally.take() for name, tally in tallies.items()}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
        for task in tasks:
            task.cancel()


async def _again(tally: Tally, once: Callable[[], Awaitable[None]]) -> None:
    """Over and over; a failure is counted, and what was under way goes on being so."""
    while True:
        try:
            await once()
        except FAILURES as error:
            tally.failures[str(error)[:40] or type(error).__name__] += 1
            await asyncio.sleep(AGAIN_S)


async def _stream(port: int, key: str, tallies: dict[str, Tally]) -> None:
    """One stream to its end. The wait for its first token is no gap, unless one before broke."""
    tally = tallies["stream"]
    connection = await Connection.open(port, key)
    try:
        body = {"prompt": "A calm ride.", "max_tokens": 1 << 20, "ignore_eos": True, "stream": True}
        head = await connection.begin(STREAM, body)
        _check(head.status)
        async for data in connection.events():
            if data == DONE:
                tally.since = None
                return
            if data.startswith(b'{"error'):
                raise ValueError("an error in the stream")
            tally.end()
            tally.begin()
        raise EOFError("no end of the stream")
    finally:
        connection.close()


async def _health(port: int, tally: Tally) -> None:
    """/health on one connection for a while, the first time on a new one."""
    tally.begin()
    async with asyncio.timeout(REPLY_S_MAX):
        connection = await Connection.open(port)
    try:
        for _ in range(NEW_EVERY):
            tally.begin()
            async with asyncio.timeout(REPLY_S_MAX):
                reply = await connection.get("/health")
            tally.end()
            _check(reply.status)
            await asyncio.sleep(HEALTH_S)
    finally:
        connection.close()


async def _chat(port: int, key: str, question: Json, tally: Tally) -> None:
    """One question."""
    tally.begin()
    connection = None
    try:
        async with asyncio.timeout(REPLY_S_MAX):
            connection = await Connection.open(port, key)
            reply = await connection.post(CHAT, question)
        tally.end()
        _check(reply.status)
    finally:
        if connection is not None:
            connection.close()
    await asyncio.sleep(CHAT_S)


async def _late(tally: Tally) -> None:
    """How much later than asked for this process is woken."""
    while True:
        due = now() + LATE_S
        await asyncio.sleep(LATE_S)
        tally.worst_ms = max(tally.worst_ms, (now() - due) * 1e3)
        tally.count += 1


def _check(status: int) -> None:
    if status != 200:
        raise ValueError(f"status {status}")


async def main(port: int, key: str, question: Json) -> None:
    """Watch until standard input is closed."""
    with contextlib.suppress(OSError):
        # It measures, so it goes before what it measures; without the right to, it does not.
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    lines = asyncio.StreamReader()
    reading = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reading, sys.stdin)
    await watch(port, key, question, lines)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
