"""The connections over which replicas send messages to an ingress. Event loops only.

An ingress listens (`BackChannel`); each replica connects to it once (`IngressConnection`), sends
its secret, and then frames. A frame carries everything that a tick made for this ingress. A replica
that dies closes its connection, so the ingress knows at once; one whose machine is gone is known by
its silence.

An ingress sends nothing but questions for details, each of them four bytes: how many characters of
each text they should have.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import struct
from collections.abc import Callable

from jitney.sandbox.frames import MalformedFrame
from jitney_cluster.replica_messages import (
    Address,
    ReplicaHello,
    ReplicaMessage,
    decode_messages,
    encode_frame,
)

FRAME_BYTES_MAX = 2**26
HELLO_BYTES_MAX = 1024
HELLO_S_MAX = 5.0
UNKNOWN_MAX = 64
"""Whoever reaches the port can connect to it: so long, and so many at once, may be without a hello.
One more takes the place of the oldest, since a replica says hello as soon as it is connected."""

BEAT_S = 0.5
"""A replica sends at least this often."""

SILENCE_S_MAX = 5.0
"""A replica that sent nothing for so long is lost."""

CONNECT_S_MAX = 5.0
UNSENT_BYTES_MAX = 2**26
"""An ingress that reads so slowly is given up."""

QUESTION_BYTES_MAX = 64
"""A replica that does not read is not asked again."""

_LENGTH = struct.Struct(">I")


class BackChannel:
    """The end of an ingress. `take` gets every message with the name of its replica; `lose` is
    called once when the connection of a replica ends."""

    def __init__(
        self, host: str, take: Callable[[str, ReplicaMessage], None], lose: Callable[[str], None]
    ) -> None:
        self._ingress = secrets.token_hex(8)
        self._host = host
        self._take = take
        self._lose = lose
        self._secret = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._unknown: dict[asyncio.Task[None], None] = {}
        """Connections that have not said hello, oldest first."""
        self._is_closed = False

    async def open(self) -> Address:
        """Listen, and return the address for the replicas."""
        self._is_closed = False
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        port = self._server.sockets[0].getsockname()[1]
        return Address(self._ingress, self._host, port, self._secret)

    async def close(self) -> None:
        """Listen no more, and end all connections."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for task in (*self._readers.values(), *self._unknown):
            task.cancel()

    @property
    def replicas(self) -> list[str]:
        """The replicas that are connected."""
        return list(self._readers)

    def ask(self, characters_max: int) -> list[str]:
        """Ask all replicas for their details; returns whom. Never waits."""
        replicas = []
        for name, writer in self._writers.items():
            if writer.transport.get_write_buffer_size() < QUESTION_BYTES_MAX:
                writer.write(_LENGTH.pack(characters_max))
                replicas.append(name)
        return replicas

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        name: str | None = None
        try:
            name = await self._hello(reader, task)
            if name is not None and name not in self._readers and not self._is_closed:
                self._readers[name] = task
                self._writers[name] = writer
                await self._read(name, reader)
        except (OSError, EOFError, TimeoutError, MalformedFrame, asyncio.CancelledError):
            pass  # whatever it was, the replica is gone for us
        finally:
            writer.close()
            if name is not None and self._readers.get(name) is task:
                del self._readers[name], self._writers[name]
                self._lose(name)

    async def _hello(self, reader: asyncio.StreamReader, task: "asyncio.Task[None]") -> str | None:
        self._unknown[task] = None
        if len(self._unknown) > UNKNOWN_MAX:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                messages = decode_messages(await _receive(reader, HELLO_BYTES_MAX))
        finally:
            self._unknown.pop(task, None)
        first = messages[0] if messages else None
        if not isinstance(first, ReplicaHello) or not _are_equal(first.secret, self._secret):
            return None
        return first.replica

    async def _read(self, name: str, reader: asyncio.StreamReader) -> None:
        while True:
            async with asyncio.timeout(SILENCE_S_MAX):
                frame = await _receive(reader, FRAME_BYTES_MAX)
            for message in decode_messages(frame):
                self._take(name, message)


OnQuestion = Callable[["IngressConnection", int], None]
"""Is called when an ingress asks for details: on which connection, with how many characters."""

GONE_MS = 30_000
"""An ingress whose machine is lost sends nothing. After so long without a receipt it is gone."""


class IngressConnection:
    """The end of a replica: a connection to one ingress. Made by `connect`.

    `on_question` is called when the ingress asks for details. It must not raise.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_question: OnQuestion
    ) -> None:
        self._writer = writer
        self._on_question = on_question
        # It ends with the ingress.
        self._watcher = asyncio.create_task(self._read(reader))

    @staticmethod
    async def connect(
        address: Address, replica: str, on_question: OnQuestion
    ) -> "IngressConnection":
        """Connect to an ingress. Raises OSError and TimeoutError."""
        async with asyncio.timeout(CONNECT_S_MAX):
            reader, writer = await asyncio.open_connection(address.host, address.port)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            own_socket = writer.get_extra_info("socket")
            own_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
        connection = IngressConnection(reader, writer, on_question)
        connection.send([ReplicaHello(address.secret, replica)])
        return connection

    @property
    def is_open(self) -> bool:
        """Whether the ingress is there and reads."""
        unsent = self._writer.transport.get_write_buffer_size()
        return not self._watcher.done() and unsent < UNSENT_BYTES_MAX

    def send(self, messages: list[ReplicaMessage]) -> None:
        """Send messages in one frame. Never waits; after the end of the ingress it does nothing.

        An ingress that does not read loses its connection: a stream with a hole would be worse.
        """
        if not messages:
            return
        if self.is_open:
            frame = encode_frame(messages)
            self._writer.write(_LENGTH.pack(len(frame)) + frame)
        elif not self._watcher.done():
            self._writer.transport.abort()

    def call_when_gone(self, call: Callable[[], None]) -> None:
        """Have something called when the ingress is gone, or this is closed."""
        self._watcher.add_done_callback(lambda _: call())

    def close(self) -> None:
        """End the connection."""
        self._watcher.cancel()
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                (characters_max,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                self._on_question(self, characters_max)


async def _receive(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """One frame. Raises EOFError and MalformedFrame."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > bytes_max:
        raise MalformedFrame(f"a frame of {length} bytes is longer than any message.")
    return await reader.readexactly(length)


def _are_equal(sent: str, secret: str) -> bool:
    """In a time that does not show how much of it is right."""
    return hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), secret.encode())
