"""Accepts all connections that wait at a listening socket, each time. Event loop.

uvloop itself accepts one in each round of its loop. With many streams the rounds are long, and new
connections, such as health checks, would wait in the kernel for seconds.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sized

from jitney.server import limits
from jitney.server.http.open_files import connections_max

_log = logging.getLogger("jitney.server")

BACKLOG = 2048
RETRY_S = 0.1
"""Until the next try when the system has no room for another connection."""


def listen(listener: socket.socket, unsent_bytes_max: int) -> None:
    """Let clients connect and wait until they are accepted. May be called again.

    Connections inherit the size of their buffer from this socket. Raises OSError.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, unsent_bytes_max)
    listener.listen(BACKLOG)


class Acceptor:
    """One listening socket, from `open` to `close`; `connections` are those that are open."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Sized,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._connections = connections
        self.arriving: set[asyncio.Task[None]] = set()
        """Connections that were accepted and have no protocol yet."""
        self._retry: asyncio.TimerHandle | None = None
        """Set from the first connection that could not be accepted to the next one that is."""

    def open(self) -> None:
        """Accept connections; the socket must be listening."""
        self._listener.setblocking(False)
        self._watch()

    async def close(self) -> None:
        """Close the socket, and wait until all accepted connections have their protocol."""
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        self._listener.close()
        if self.arriving:
            await asyncio.wait(self.arriving)

    def _watch(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # Beyond the limit accept one at a time: to refuse a connection takes an open file.
        room = connections_max() - len(self._connections) - len(self.arriving)
        for _ in range(max(1, min(limits.ACCEPTS_PER_ROUND, room))):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(error)
                return
            self._retry = None
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        arrival = asyncio.create_task(self._hand_over(connection))
        self.arriving.add(arrival)
        arrival.add_done_callback(self.arriving.discard)

    async def _hand_over(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            _log.debug("A connection ended before it was accepted: %s", error)
            connection.close()

    def _pause(self, error: OSError) -> None:
        """Wait a little: to try again at once would only fill the log."""
        if self._retry is None:
            _log.warning("No connection can be taken at the moment: %s", error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._retry = loop.call_later(RETRY_S, self._watch)
