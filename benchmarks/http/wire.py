"""A small HTTP/1.1 client on asyncio's streams, quick enough for a thousand of them.

One request at a time on a connection, which is kept between requests. Replies are whole, or
streams of server-sent events; a stream is read to its last chunk, so that anything that comes
after its end is seen.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]  # Any: a JSON value

HOST = "127.0.0.1"
DONE = b"[DONE]"
LAST_CHUNK = b"\r\n0\r\n\r\n"
PIECE_BYTES = 65_536
_LINGER_NONE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a reply; names of headers are in lower case."""

    status: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    head: Head
    body: bytes

    @property
    def status(self) -> int:
        """Its status."""
        return self.head.status

    def json(self) -> Json:
        """Its body, read."""
        value: Json = json.loads(self.body)
        return value


class Connection:
    """One connection to the server."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._key = key

    @classmethod
    async def open(cls, port: int, key: str | None = None) -> "Connection":
        """Call the server on this machine, with a key where it wants one."""
        return cls(*await asyncio.open_connection(HOST, port), key)

    async def post(self, path: str, body: Json) -> Reply:
        """Send a body and read the whole reply."""
        return await self._whole(await self.begin(path, body))

    async def get(self, path: str) -> Reply:
        """Ask for something."""
        return await self._whole(await self._head_of(f"GET {path} HTTP/1.1", b""))

    async def begin(self, path: str, body: Json) -> Head:
        """Send a body and read the reply as far as its headers."""
        return await self._head_of(f"POST {path} HTTP/1.1", json.dumps(body).encode())

    async def rest(self, head: Head) -> bytes:
        """The body of a reply whose headers were read."""
        length = head.headers.get("content-length")
        if length is not None:
            return await self._reader.readexactly(int(length))
        return b"".join([chunk async for chunk in self._chunks()])

    async def events(self) -> AsyncIterator[bytes]:
        """What each event of a stream holds, until the last chunk; comments are left out."""
        left = b""
        async for chunk in self._chunks():
            *blocks, left = (left + chunk).split(b"\n\n")
            for block in blocks:
                if _is_event(block):
                    yield block.removeprefix(b"data: ")
        if left:
            raise ValueError(f"half an event: {left[:80]!r}")

    async def events_at_end(self) -> list[bytes]:
        """What the events of a stream hold, taken apart only when the last of it is here.

        Costs a client little while the stream runs: the clients of a server are elsewhere, and
        what they do with their events is no cost of its.
        """
        pieces = [b""]
        while not (b"".join(pieces[-2:])).endswith(LAST_CHUNK):
            piece = await self._reader.read(PIECE_BYTES)
            if not piece:
                raise EOFError("the stream ended in the middle")
            pieces.append(piece)
        return events_of(b"".join(pieces))

    def close(self) -> None:
        """Say goodbye."""
        self._writer.close()

    def pause(self) -> None:
        """Take nothing any more; what comes stays with the system."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def reset(self) -> None:
        """Be gone without a word: the other side sees a reset."""
        made: socket.socket = self._writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self._writer.transport.abort()

    async def _head_of(self, line: str, body: bytes) -> Head:
        self._writer.write(request_bytes(line, body, self._key))
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (each.split(": ", 1) for each in lines if each)
        headers = {name.lower(): value for name, value in pairs}
        return Head(int(first.split(" ", 2)[1]), headers)

    async def _whole(self, head: Head) -> Reply:
        return Reply(head, await self.rest(head))

    async def _chunks(self) -> AsyncIterator[bytes]:
        reader = self._reader
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            chunk = await reader.readexactly(size + 2)
            if size == 0:
                return
            yield chunk[:-2]


def request_bytes(line: str, body: bytes, key: str | None = None) -> bytes:
    """A request with this first line."""
    kind = "Content-Type: application/json\r\n" if body else ""
    who = "" if key is None else f"Authorization: Bearer {key}\r\n"
    head = f"{line}\r\nHost: {HOST}\r\n{who}{kind}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def events_of(body: bytes) -> list[bytes]:
    """What the events of a chunked body hold; comments are left out."""
    *blocks, left = b"".join(_chunks_of(body)).split(b"\n\n")
    if left:
        raise ValueError(f"half an event: {left[:80]!r}")
    return [block.removeprefix(b"data: ") for block in blocks if _is_event(block)]


def _chunks_of(body: bytes) -> Iterator[bytes]:
    at = 0
    while True:
        line_end = body.index(b"\r\n", at)
        start = line_end + 2
        end = start + int(body[at:line_end], 16)
        if body[end : end + 2] != b"\r\n":
            raise ValueError(f"no end of a chunk: {body[end : end + 80]!r}")
        if start == end:
            return
        yield body[start:end]
        at = end + 2


def _is_event(block: bytes) -> bool:
    if not block.startswith((b"data: ", b":")):
        raise ValueError(f"no event: {block[:80]!r}")
    return not block.startswith(b":")
