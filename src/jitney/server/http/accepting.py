"""Takes new connections from a listening socket: as many as wait, each time. Event loop.

uvloop by itself takes one in each round of its loop. Where many stream, rounds are long, and those
who come meanwhile would stand in the kernel's line for seconds, health checks among them.
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
"""Until the next try where the system has nothing left for another connection."""


def listen(listener: socket.socket, unsent_bytes_max: int) -> None:
    """Let people connect; they wait until they are taken. May be called again. Raises OSError.

    Connections take the size of their buffer over from the socket that they come through.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, unsent_bytes_max)
    listener.listen(BACKLOG)


class Acceptor:
    """One listening socket, from `open` to `close`; `connections` is everyone who is there."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Sized,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._connections = connections
        self._arriving: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        """There from the first connection that could not be taken until the next one that is."""

    @property
    def arriving_count(self) -> int:
        """Connections that were taken and are not among those who are there yet."""
        return len(self._arriving)

    def open(self) -> None:
        """Take those who come; the socket listens by now."""
        self._listener.setblocking(False)
        self._watch()

    async def close(self) -> None:
        """Take no more and give the address back. Whoever was taken is there afterwards."""
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        self._listener.close()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _watch(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._take)

    def _take(self) -> None:
        # Whoever is one too many is told so, which takes a file for a moment: one at a time.
        room = connections_max() - len(self._connections) - self.arriving_count
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
            self._greet(connection)

    def _greet(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        arrival = asyncio.create_task(self._hand_over(connection))
        self._arriving.add(arrival)
        arrival.add_done_callback(self._arriving.discard)

    async def _hand_over(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            _log.debug("a connection was gone before it was taken: %s", error)
            connection.close()

    def _pause(self, error: OSError) -> None:
        """Nothing changes by asking again at once, and the line would be there all the time."""
        if self._retry is None:
            _log.warning("no connection can be taken at the moment: %s", error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._retry = loop.call_later(RETRY_S, self._watch)
