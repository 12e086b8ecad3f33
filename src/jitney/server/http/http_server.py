"""uvicorn's server, with our own acceptor and connections: `HttpServer`. Event loop.

What touches the insides of uvicorn and h11 is in this folder and nowhere else; pyproject.toml
bounds their versions.

Tests: tests/e2e/server/test_readers.py and test_early_answers.py.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from jitney.server import limits
from jitney.server.error_object import Refusal
from jitney.server.http.connections import Acceptor, Rounds
from jitney.server.http.protocol import GuardedProtocol

_log = logging.getLogger("jitney.server")

_TICKS_PER_LOOK = 10
"""Of uvicorn's main loop, which has ten ticks a second: how often we check that clients read."""


class HttpServer(uvicorn.Server):
    """uvicorn with our own acceptor, without its signal handlers, which would cut streams. It also
    cuts clients that do not read."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        shutdown_s: int,
        response_listeners: Sequence[Callable[[str, int, str | None], None]],
        on_started: Callable[[], None],
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            # Nothing here asks who the caller of a proxy is.
            proxy_headers=False,
            timeout_graceful_shutdown=shutdown_s,
        )
        super().__init__(config)
        self._acceptor = Acceptor(listener, self._make_protocol, self.server_state.connections)
        self._response_listeners = response_listeners
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        self._rounds = Rounds(asyncio.get_running_loop().call_soon)
        self._acceptor.open()
        await super().startup(sockets=[])
        self._on_started()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % _TICKS_PER_LOOK == 0:
            for each in self._connections():
                each.cut_if_stalled(limits.SEND_S_MAX)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, let open ones finish, and cut those that do not."""
        await self._acceptor.close()
        await super().shutdown(sockets=[])
        for each in self._connections():
            # A response that still writes would wait for its reader, and keep the process.
            each.transport.abort()

    def _note(self, refusal: Refusal) -> None:
        """Count and log a connection that was refused before it sent a request."""
        _log.info("A connection was refused: %s", refusal.message)
        for listener in self._response_listeners:
            listener("other", refusal.status, refusal.reason)

    def _connections(self) -> list[GuardedProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, GuardedProtocol)]

    def _make_protocol(self) -> GuardedProtocol:
        return GuardedProtocol(
            self.config, self.server_state, app_state={}, rounds=self._rounds, note=self._note
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
