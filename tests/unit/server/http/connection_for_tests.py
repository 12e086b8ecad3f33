"""A connection over a transport of our own, for tests of its protocol."""

import asyncio
import socket
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from jitney.server.http.connections import Rounds
from jitney.server.http.protocol import GuardedProtocol


class Transport(asyncio.Transport):
    """Notes what is done with it, and holds as many bytes as a test says."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        super().__init__()
        self._connection = connection
        self.unsent_bytes = 0
        self.written = b""
        self.is_closed = False
        self.is_half_closed = False
        self.reads = True

    def write(self, data: Any) -> None:  # Any: as asyncio has it
        assert not self.is_half_closed, "nothing comes after the end"
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.is_half_closed = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # Any: as asyncio has it
        return self._connection if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Connection:
    """A client's side of a connection to an app that answers at once, at /whole when the body is
    there, at /late when that is asked for, and at /never not at all."""

    def __init__(
        self, loop: Any, rounds: Rounds | None = None, connection: socket.socket | None = None
    ) -> None:
        self.is_due = asyncio.Event()
        config = uvicorn.Config(
            self._app, interface="asgi3", log_config=None, ws="none", lifespan="off"
        )
        config.load()
        self.loop, self.transport = loop, Transport(connection)
        self.rounds = rounds or Rounds(self.loop.call_soon)
        self.protocol = GuardedProtocol(
            config, ServerState(), {}, self.loop, rounds=self.rounds, note=print
        )
        self.protocol.connection_made(self.transport)

    async def send(self, data: bytes) -> None:
        self.protocol.data_received(data)
        for _ in range(10):
            await asyncio.sleep(0)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/late":
            await self.is_due.wait()
        message = await receive() if scope["path"] != "/now" else {}
        while message.get("more_body") or scope["path"] == "/never":
            message = await receive()
            if message["type"] == "http.disconnect":
                return
        must_end = scope["extensions"]["jitney.must_end"]()
        headers = [(b"content-length", b"2"), *([(b"connection", b"close")] if must_end else [])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})
