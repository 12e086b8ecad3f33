"""Readers that stop: 100 streams whose clients take nothing, beside one that reads.

Each costs the server a bounded piece of memory, what waits for it in the engine included; the one
who reads has the same pace as beside a hundred who read; and each is cut when nothing has moved
for the read timeout. The fake backend takes as long as a model would, so the pace of the reader is
known. What moves is read from the system's table of connections, so that the clock of a stall
starts at its last byte.
"""

import asyncio
import contextlib
import json
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.http.paced import program
from benchmarks.http.report import Report
from benchmarks.http.served import Served, allow_files, served
from benchmarks.http.wire import DONE, HOST, Connection, Json, request_bytes
from jitney.server.limits import SEND_S_MAX

READERS = 100
TICK_MS = 40.0
KIB_MAX = 256.0
PACE_SHARE_MIN = 0.9
CUT_S_SLACK = 12.0
"""The clock of a stall is set when the server's own buffer is full too. That is some seconds after
the last byte moved to the system, from when it is counted here: 64 KiB of events."""

MODEL = "a-name-as-long-as-they-come-" * 7
"""Stands in every event, so that buffers are soon full."""

BUFFER_BYTES = 16_384
"""What a client's system takes in for it: small, so that the stall comes soon."""

LOOK_S = 0.5
ESTABLISHED = "01"
WARM_TOKENS = 500
ALONE_S, RAMP_S = 5.0, 2.0
STALL_S_MAX = 120.0
TOKENS = 4_500
FLAGS = (
    *("--backend", "fake", "--max-num-seqs", str(READERS + 4), "--max-model-len", "16384"),
    *("--kv-tokens", "2000000", "--no-enable-prefix-caching"),
    *("--served-model-name", MODEL),
)
PATH = "/v1/chat/completions"


@dataclass(slots=True)
class Stalled:
    """One who asked and does not read: what is under way to it, and when that last moved."""

    connection: socket.socket
    queued: int = -1
    moved_s: float = 0.0
    cut_s: float | None = None

    @property
    def port(self) -> int:
        """Its own end."""
        number: int = self.connection.getsockname()[1]
        return number


def queues_of(table: str, server_port: int) -> dict[int, int]:
    """Bytes that the system holds for each client of a server, by the client's port.

    A connection that the server has closed is not among them, though its bytes may still lie there:
    nobody tells a client that does not read.
    """
    found: dict[int, int] = {}
    for line in table.splitlines()[1:]:
        _, local, remote, state, queues, *_ = line.split()
        if state == ESTABLISHED and int(local.rpartition(":")[2], 16) == server_port:
            found[int(remote.rpartition(":")[2], 16)] = int(queues.partition(":")[0], 16)
    return found


def stalled(report: Report) -> None:
    """100 readers that stop: memory of each, pace of another stream, and when they are cut."""
    allow_files()
    for name, body in {"plain": {}, "logprobs": {"logprobs": True, "top_logprobs": 20}}.items():
        with served(*FLAGS, program=program(TICK_MS, 0.0)) as server:
            asyncio.run(_stalled(report, server, name, body))
            report.check(f"{name}: no traceback in the log", "Traceback" not in server.log())


async def _stalled(report: Report, server: Served, name: str, extra: Json) -> None:
    times: list[float] = []
    reader = asyncio.create_task(_read(server, times))
    await asyncio.sleep(ALONE_S)
    read_from_s = time.perf_counter()
    await _warm(server, extra)
    read_to_s = time.perf_counter()
    alone, calm = (
        pace(times, times[0], read_from_s),
        pace(times, read_from_s + RAMP_S, read_to_s - RAMP_S),
    )
    before = server.footprint()
    async with contextlib.AsyncExitStack() as opened:
        crowd = [
            Stalled(opened.enter_context(contextlib.closing(_ask(server, extra))))
            for _ in range(READERS)
        ]
        began_s = time.perf_counter()
        most_mib = await _watch(server, crowd)
        beside = pace(times, began_s + RAMP_S, time.perf_counter())
    reader.cancel()
    told = await server.metrics()
    kib = max(0.0, most_mib - before.server_mib) * 1024 / READERS
    held = [each.cut_s - each.moved_s for each in crowd if each.cut_s is not None]
    report.say(
        f"{name}: {len(held)} of {READERS} cut, {min(held, default=0):.1f} to "
        f"{max(held, default=0):.1f} s after their last byte moved; server {before.server_mib:.1f} "
        f"MiB before and {most_mib:.1f} at most, {kib:.0f} KiB each; "
        f"{told['jitney:completion_tokens_total']:.0f} tokens were made"
    )
    report.say(
        f"{name}: another stream got {alone:.0f} tokens/s alone, {calm:.0f} beside as many who "
        f"read, {beside:.0f} beside these"
    )
    report.figure(f"{name}_kib_each", kib)
    report.figure(f"{name}_pace_share", beside / calm)
    report.figure(f"{name}_cut_s", max(held, default=0.0))
    report.check(f"{name}: at most {KIB_MAX:g} KiB for each", kib <= KIB_MAX)
    report.check(
        f"{name}: another stream is as fast as beside readers, within {1 - PACE_SHARE_MIN:.0%}",
        beside >= PACE_SHARE_MIN * calm,
    )
    report.check(
        f"{name}: all are cut, not before {SEND_S_MAX:g} s and not {CUT_S_SLACK:g} s after it",
        len(held) == READERS
        and min(held) >= SEND_S_MAX - 2 * LOOK_S
        and max(held) <= SEND_S_MAX + CUT_S_SLACK,
    )


def pace(times: list[float], start_s: float, end_s: float) -> float:
    """Tokens in a second between two moments: the median of its seconds."""
    counts = [0] * max(1, int(end_s - start_s))
    for each in times:
        if start_s <= each < start_s + len(counts):
            counts[int(each - start_s)] += 1
    return statistics.median(counts)


async def _watch(server: Served, crowd: list[Stalled]) -> float:
    """Look until all are cut, or for long enough; the most memory that the server had, in MiB."""
    most_mib, deadline_s = 0.0, time.perf_counter() + STALL_S_MAX
    while time.perf_counter() < deadline_s and any(each.cut_s is None for each in crowd):
        await asyncio.sleep(LOOK_S)
        now_s = time.perf_counter()
        most_mib = max(most_mib, server.footprint().server_mib)
        queues = queues_of(_table(), server.port)
        for each in crowd:
            queued = queues.get(each.port)
            if queued is None:
                each.cut_s = each.cut_s or now_s
            elif queued != each.queued:
                each.queued, each.moved_s = queued, now_s
    return most_mib


def _table() -> str:
    return Path("/proc/net/tcp").read_text()


def _ask(server: Served, extra: Json) -> socket.socket:
    """Ask for a long stream on a socket that nobody will read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    connection.connect((HOST, server.port))
    body = json.dumps(_body(extra, TOKENS)).encode()
    connection.sendall(request_bytes(f"POST {PATH} HTTP/1.1", body))
    return connection


async def _read(server: Served, times: list[float]) -> None:
    """The stream of someone who reads; the moment of each token."""
    connection = await Connection.open(server.port)
    await connection.begin(PATH, _body({}, TOKENS))
    async for data in connection.events():
        if data == DONE:
            return
        times.append(time.perf_counter())


async def _warm(server: Served, extra: Json) -> None:
    """As many who read, for as long: memory counts from a server that has seen them."""

    async def one() -> None:
        connection = await Connection.open(server.port)
        await connection.begin(PATH, _body(extra, WARM_TOKENS))
        await connection.events_at_end()
        connection.close()

    await asyncio.gather(*(one() for _ in range(READERS)))


def _body(extra: Json, tokens: int) -> Json:
    messages = [{"role": "user", "content": "Tell me everything about buses."}]
    return {
        "messages": messages,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        **extra,
    }
