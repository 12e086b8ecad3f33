"""Attacks on the connection itself; most need no key."""

import asyncio
import random
import resource
import socket
import struct

from benchmarks.http.hostile.attack import (
    Attack,
    Bounds,
    Target,
    connected,
    crowd,
    is_closed,
    status_of,
)
from benchmarks.http.wire import HOST

KEEP_ALIVE_S = 30.0
"""The server's patience with a connection that is idle; nobody should stay for longer."""

_PATH = "/v1/completions"
_OPEN = f"POST {_PATH} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
_ONE_BYTE_CHUNKS = b"1\r\nx\r\n" * 10_000
_UNREAD_GETS = f"GET /page/page.css HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode() * 18
"""Answers of more than the server and the system hold for one who does not read."""

_SMALL_CHUNKS = (b"10\r\n" + b"x" * 16 + b"\r\n") * 8000
_CHUNKS = (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 512
_LINGER_NONE = struct.pack("ii", 1, 0)
_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(200))


async def chunks_after_401(target: Target) -> None:
    """One-byte chunks for ever, after the refusal has come."""
    while True:
        async with connected(target) as (reader, writer):
            writer.write(f"{_OPEN}Transfer-Encoding: chunked\r\n\r\n".encode())
            target.told[status_of(await reader.read(4096))] += 1
            try:
                while not is_closed(reader):
                    writer.write(_ONE_BYTE_CHUNKS)
                    await writer.drain()
            except OSError:
                target.told["closed"] += 1
        await asyncio.sleep(0.05)


async def body_behind_unread(target: Target) -> None:
    """Answers that are not taken, then chunks that nobody reads: those before are waited for."""
    while True:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect((HOST, target.port))
        # With so low a limit next to nothing is read.
        _, writer = await asyncio.open_connection(sock=made, limit=1)
        try:
            begun = f"{_OPEN}Transfer-Encoding: chunked\r\n\r\n".encode()
            for part in (_UNREAD_GETS, begun, _SMALL_CHUNKS):
                writer.write(part)
                await asyncio.sleep(0.4)
            while True:
                writer.write(_CHUNKS)
                await writer.drain()
                target.told["512 KB taken"] += 1
        except OSError:
            target.told["cut"] += 1
        finally:
            writer.close()


async def early_answer_then_byte(target: Target) -> None:
    """An early answer, one more byte of the body, and silence: for how long may one stay?"""
    readers = []

    async def one(_: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, target.port)
        writer.write(f"{_OPEN}Content-Length: 1000\r\n\r\n0123456789".encode())
        target.told[status_of(await reader.read(4096))] += 1
        writer.write(b"x")
        readers.append((reader, writer))

    await crowd(100, one, times=1)
    await asyncio.sleep(KEEP_ALIVE_S + 4.0)
    for reader, writer in readers:
        # What is left of the answer is taken first, so that the end shows.
        for _ in range(4):
            try:
                async with asyncio.timeout(0.02):
                    await reader.read(65_536)
            except (TimeoutError, OSError):
                break
        assert writer is not None
    alive = sum(not is_closed(reader) for reader, _ in readers)
    if alive:
        target.faults.append(
            f"{alive} of {len(readers)} connections alive after {KEEP_ALIVE_S + 4.0:g} s of silence"
        )


async def slow_bodies(target: Target) -> None:
    """200 callers who send a byte of their body each second."""
    head = f"{_OPEN}Authorization: Bearer {target.key}\r\nContent-Length: 5000\r\n\r\n"
    await _trickle(target, head.encode())


async def slow_headers(target: Target) -> None:
    """200 callers who send a byte of their headers each second."""
    await _trickle(target, f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nX-Slow: ".encode())


async def _trickle(target: Target, beginning: bytes) -> None:
    async def one(number: int) -> None:
        async with connected(target) as (reader, writer):
            await asyncio.sleep(number / 200)
            writer.write(beginning)
            while not is_closed(reader):
                writer.write(b"x")
                await asyncio.sleep(1.0)
            target.told["closed"] += 1

    await crowd(200, one)


async def late_together(target: Target) -> None:
    """Kept connections with one byte of the next head on all at once: their time ends together."""
    kept: list[asyncio.StreamWriter] = []

    async def one(_: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, target.port)
        writer.write(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        target.told[status_of(await reader.read(4096))] += 1
        kept.append(writer)

    await crowd(4, one, times=250)
    for writer in kept:
        writer.write(b"G")
    await asyncio.Event().wait()


async def large_beside_small(target: Target) -> None:
    """150 who ask again and again, and 50 whose heads are as large as they may be."""
    small = f"GET /v1/models HTTP/1.1\r\nHost: {HOST}\r\n".encode()
    large = small + b"".join(b"x-%03d: %b\r\n" % (at, b"a" * 118) for at in range(125))

    async def one(number: int) -> None:
        async with connected(target) as (reader, writer):
            while not is_closed(reader):
                writer.write((large if number < 50 else small) + b"\r\n")
                target.told[status_of(await reader.readuntil(b"}}"))] += 1

    await crowd(200, one)


async def huge_headers(target: Target) -> None:
    """Headers just below, at and far above every limit."""
    heads = (
        "X-Long: " + "a" * 30_000 + "\r\n",
        "X-Long: " + "a" * 300_000 + "\r\n",
        "".join(f"X-{number}: a\r\n" for number in range(120)),
        "".join(f"X-{number}: a\r\n" for number in range(5000)),
        "Cookie: " + "a=b; " * 6000 + "\r\n",
    )
    requests = [target.request("GET /health", head=head, key=False) for head in heads]
    await crowd(4, lambda number: target.send(random.choice(requests)))


async def ten_thousand(target: Target) -> None:
    """As many connections as this process may open, up to 10,000, held."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_200
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))
    count = min(10_000, max(soft, more) - 100)
    held = []

    async def one(_: int) -> None:
        for _ in range(count // 50):
            try:
                held.append(await asyncio.open_connection(HOST, target.port))
                target.told["opened"] += 1
            except OSError as error:
                target.told[type(error).__name__] += 1

    await crowd(50, one, times=1)
    await asyncio.Event().wait()


async def half_closed(target: Target) -> None:
    """A request, and the end of all that will ever be sent; the answer is not read."""
    body = b'{"prompt": "x", "max_tokens": 2000, "stream": true, "ignore_eos": true}'

    async def one(_: int) -> None:
        async with connected(target) as (_, writer):
            writer.write(target.request(f"POST {_PATH}", body))
            writer.write_eof()
            await asyncio.sleep(0.5)

    await crowd(32, one)


async def pipelining(target: Target) -> None:
    """500 requests in one piece on each connection."""
    piece = f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode() * 500

    async def one(_: int) -> None:
        async with connected(target) as (reader, writer):
            writer.write(piece)
            while got := await reader.read(1 << 20):
                target.told["200"] += got.count(b"HTTP/1.1 200")
                if b"HTTP/1.1 4" in got:
                    target.told["4xx"] += 1

    await crowd(4, one)


async def tls_bytes(target: Target) -> None:
    """The beginning of TLS, at a port that speaks none."""
    await crowd(4, lambda number: target.send(_HELLO))


async def random_bytes(target: Target) -> None:
    """Noise, with and without lines in it."""
    generator = random.Random(12)
    noises = [generator.randbytes(size) for size in (1, 100, 4000, 60_000)]
    noises += [b"\r\n" * 20_000, b"\n" * 40_000, b"GET " * 10_000, b"\0" * 50_000]
    # Some of it is the beginning of a request, which is waited for.
    await crowd(4, lambda number: target.send(generator.choice(noises), 0.1))


async def open_and_reset(target: Target) -> None:
    """Connections that are reset as soon as they are there."""

    async def one(_: int) -> None:
        async with connected(target) as (_, writer):
            _reset(writer)
            target.told["reset"] += 1
        await asyncio.sleep(0.002)

    await crowd(16, one)


async def cancel_storm(target: Target) -> None:
    """Streams that are reset as soon as they begin."""
    body = b'{"prompt": "x", "max_tokens": 2000, "stream": true, "ignore_eos": true}'
    request = target.request(f"POST {_PATH}", body)

    async def one(number: int) -> None:
        async with connected(target) as (reader, writer):
            writer.write(request)
            if number % 2:
                target.told[status_of(await reader.read(4096))] += 1
            else:
                await asyncio.sleep(0.02)
                target.told["reset unread"] += 1
            _reset(writer)

    await crowd(32, one)


async def wrong_keys(target: Target) -> None:
    """Guesses."""
    generator = random.Random(12)

    async def one(_: int) -> None:
        guess = f"Authorization: Bearer {generator.randbytes(16).hex()}\r\n"
        await target.ask(f"POST {_PATH}", b'{"prompt": "x"}', head=guess, key=False)

    await crowd(4, one)


def _reset(writer: asyncio.StreamWriter) -> None:
    made: socket.socket = writer.get_extra_info("socket")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    writer.transport.abort()


ATTACKS = (
    Attack(
        name="chunks-after-401",
        text="one connection without a key: chunks of one byte for ever after the refusal",
        run=chunks_after_401,
        needs_key=False,
        seconds=8.0,
    ),
    Attack(
        name="body-behind-unread",
        text="one connection without a key: answers left unread, then a body that never ends",
        run=body_behind_unread,
        needs_key=False,
        seconds=8.0,
    ),
    Attack(
        name="early-answer-then-byte",
        text="100 refused bodies, one more byte of each, then silence beyond the keep-alive time",
        run=early_answer_then_byte,
        needs_key=False,
        seconds=KEEP_ALIVE_S + 14.0,
    ),
    Attack(name="slow-bodies", text="200 bodies at a byte a second", run=slow_bodies, seconds=6.0),
    Attack(
        name="slow-headers",
        text="200 heads at a byte a second",
        run=slow_headers,
        needs_key=False,
        seconds=6.0,
    ),
    Attack(
        name="late-together",
        text="1,000 kept connections whose time for the next head ends at one moment",
        run=late_together,
        needs_key=False,
        seconds=18.0,
    ),
    Attack(
        name="large-beside-small",
        text="50 repeat heads of 16 KB, 150 small ones",
        run=large_beside_small,
        needs_key=False,
        bounds=Bounds(
            health_ms=600.0,
            because="200 callers have a request in line at all times, and each is answered in turn "
            "in some 1.5 ms",
        ),
    ),
    Attack(
        name="huge-headers",
        text="heads of 30 to 300 KB, and of thousands of lines",
        run=huge_headers,
        needs_key=False,
    ),
    Attack(
        name="connections-10000",
        text="10,000 connections, or as many as this machine allows, opened and held",
        run=ten_thousand,
        needs_key=False,
        seconds=8.0,
        bounds=Bounds(
            health_ms=5000.0,
            chat_ms=None,
            memory_mib=60.0,
            may_fail=frozenset({"health", "chat"}),
            because="taking 8,192 connections takes some seconds, in which a new one waits; beyond "
            "the limit it is told 503 until others are closed for idling",
        ),
    ),
    Attack(name="half-closed", text="32 streams, half closed and unread", run=half_closed),
    Attack(
        name="pipelining",
        text="500 requests in one piece, four connections, over and over",
        run=pipelining,
        needs_key=False,
    ),
    Attack(name="tls-bytes", text="TLS at a port without", run=tls_bytes, needs_key=False),
    Attack(name="random-bytes", text="noise", run=random_bytes, needs_key=False),
    Attack(
        name="open-and-reset",
        text="16 at once who connect and reset",
        run=open_and_reset,
        needs_key=False,
    ),
    Attack(name="cancel-storm", text="32 streams, begun and reset", run=cancel_storm),
    Attack(name="wrong-keys", text="keys guessed by four", run=wrong_keys, needs_key=False),
)
