"""Callers that come at a rate, whatever the server does: an open loop, and cheap.

They share the machine with the server, so they run on one thread of low priority, keep what comes
as bytes, and count what they could not offer in time. A connection is used again when its answer
was whole. Each offered call has one end: a status, or `None` when no whole answer came.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.http.wire import HOST, LAST_CHUNK

NICENESS = 5
LATE_S_MAX = 1.0
"""A call that this process sends later than this was not offered at its time."""

OPEN_MAX = 4000
_HEAD_END = b"\r\n\r\n"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended; times are those of `perf_counter`."""

    began_s: float
    ended_s: float
    status: int | None
    says_when: bool
    """Whether a refusal has Retry-After."""

    @property
    def took_s(self) -> float:
        """From the call to the last byte of its answer."""
        return self.ended_s - self.began_s


def answer_status(received: bytes) -> tuple[int, bool, bool] | None:
    """Status, Retry-After and whether the connection lasts, once a reply is whole; else None."""
    end = received.find(_HEAD_END)
    if end < 0:
        return None
    head = received[:end].lower()
    length = head.find(b"content-length:")
    if length >= 0:
        wanted = int(head[length + 15 :].split(b"\r\n", 1)[0])
        is_whole = len(received) >= end + len(_HEAD_END) + wanted
    else:
        is_whole = received.endswith(LAST_CHUNK) and b"data: [DONE]" in received
    if not is_whole:
        return None
    lasts = b"connection: close" not in head
    return int(head.split(b" ", 2)[1]), b"\r\nretry-after:" in head, lasts


class _Line(asyncio.Protocol):
    """One connection, with one call on it at a time."""

    def __init__(self, callers: "Callers") -> None:
        self._callers = callers
        self._received = bytearray()
        self._request = b""
        self._began_s: float | None = None
        self._calls = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def call(self, request: bytes, began_s: float) -> None:
        assert self._transport is not None
        self._request, self._began_s = request, began_s
        self._calls += 1
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"data:" in data and not data.endswith(LAST_CHUNK):
            return  # most pieces of a stream are not its end, and are not looked at
        told = answer_status(bytes(self._received))
        if told is None or self._began_s is None or self._transport is None:
            return
        status, says_when, lasts = told
        self._end(status, says_when=says_when)
        if lasts:
            self._callers.idle.append(self)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._callers.idle:
            self._callers.idle.remove(self)
        if self._began_s is None:
            return
        if self._calls > 1 and not self._received:
            # The server closed a connection that was idle while this call was on its way to it.
            self._callers.dial(self._request, self._began_s)
        else:
            self._end(None, says_when=False)

    def _end(self, status: int | None, *, says_when: bool) -> None:
        assert self._began_s is not None
        self._callers.end(Answer(self._began_s, time.perf_counter(), status, says_when))
        self._began_s = None
        self._received.clear()


@dataclass(slots=True)
class Callers:
    """All calls of a run."""

    port: int
    answers: list[Answer] = field(default_factory=list)
    idle: list[_Line] = field(default_factory=list)
    offered: int = 0
    not_offered: int = 0
    under_way: int = 0
    _dialling: set[asyncio.Task[None]] = field(default_factory=set)

    def end(self, answer: Answer) -> None:
        """A call is over."""
        self.under_way -= 1
        self.answers.append(answer)

    async def offer(
        self, rate: float, seconds: float, make: Callable[[int], bytes], seed: int = 1
    ) -> None:
        """Calls at random moments, so many in a second on average, for so long."""
        generator = random.Random(seed)
        due_s = started_s = time.perf_counter()
        while (due_s := due_s + generator.expovariate(rate)) < started_s + seconds:
            ahead_s = due_s - time.perf_counter()
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            if ahead_s < -LATE_S_MAX or self.under_way >= OPEN_MAX:
                self.not_offered += 1
                continue
            self._call(make(self.offered))
            if ahead_s <= 0:
                await asyncio.sleep(0)  # whoever is behind still reads what came

    async def keep_busy(self, at_once: int, seconds: float, make: Callable[[int], bytes]) -> None:
        """Always so many calls under way, for so long."""
        ends_s = time.perf_counter() + seconds
        while time.perf_counter() < ends_s:
            while self.under_way < at_once:
                self._call(make(self.offered))
            await asyncio.sleep(0.005)

    async def finish(self, limit_s: float) -> None:
        """Wait for all answers; those that are not there after this never came."""
        ends_s = time.perf_counter() + limit_s
        while self.under_way and time.perf_counter() < ends_s:  # noqa: ASYNC110, a count
            await asyncio.sleep(0.05)
        now_s = time.perf_counter()
        self.answers += [Answer(now_s, now_s, None, False)] * self.under_way

    def _call(self, request: bytes) -> None:
        self.offered += 1
        self.under_way += 1
        began_s = time.perf_counter()
        if self.idle:
            self.idle.pop().call(request, began_s)
            return
        self.dial(request, began_s)

    def dial(self, request: bytes, began_s: float) -> None:
        """Make a call on a connection of its own."""
        task = asyncio.get_running_loop().create_task(self._dial(request, began_s))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, request: bytes, began_s: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, line = await loop.create_connection(lambda: _Line(self), HOST, self.port)
        except OSError:
            self.end(Answer(began_s, time.perf_counter(), None, False))
            return
        line.call(request, began_s)


def run_modestly(work: Callable[[], Coroutine[None, None, Value]]) -> Value:
    """Run this on a thread that gives way to the server, and wait for it."""
    made: list[Value] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            made.append(asyncio.run(work()))
        except BaseException as error:  # it belongs to whoever waits
            failed.append(error)

    thread = threading.Thread(target=run, name="callers")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
