"""What connections share: open files, the listening socket, rounds of the event loop. Event loop.

Every connection is an open file, and shells and service managers often allow a process 1,024.
`allow_files` is called once, at the start; `connections_max` may be called at any time.

`Acceptor` accepts all connections that wait at a listening socket, each time. uvloop itself accepts
one in each round of its loop. With many streams the rounds are long, and new connections, such as
health checks, would wait in the kernel for seconds.

`Rounds` shares each round among the connections that have sent something. A round reads only a
little from a connection that has sent much. Between two rounds, streams are served and new
connections are accepted. There are two queues: for connections that begin, and for those that go
on. Each gets half of the work.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Sized

from jitney.server import limits

_log = logging.getLogger("jitney.server")

BACKLOG = 2048
RETRY_S = 0.1
"""Until the next try when the system has no room for another connection."""


def allow_files() -> None:
    """Raise this process's own limit to what the connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.CONNECTIONS_MAX + limits.FILES_KEPT
    target = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    # The real bound may be lower than the reported one: macOS reports none.
    while soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):
            _log.debug("The limit on open files cannot be %d", target)
            target //= 2
        else:
            break
    if connections_max() < limits.CONNECTIONS_MAX:
        _log.warning(
            "At most %d connections at once: the limit on open files allows no more",
            connections_max(),
        )


def connections_max() -> int:
    """Connections at once, idle ones included, under the limit on open files as it is now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.CONNECTIONS_MAX
    # Under a tiny limit, half of the files are for connections.
    return max(1, min(limits.CONNECTIONS_MAX, max(soft - limits.FILES_KEPT, soft // 2)))


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


class Rounds:
    """What is left of this round, and the callbacks of the next one, in order."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._left = limits.STEPS_PER_ROUND
        # With the bytes that each holds in memory meanwhile.
        self._first: dict[Callable[[], None], int] = {}
        self._again: dict[Callable[[], None], int] = {}
        self._held_bytes = 0
        self._ahead = 0
        """Steps by which the first queue is ahead of the second, while both have entries."""
        self._is_called = False

    @property
    def is_over(self) -> bool:
        """Whether no more may be done in this round."""
        return self._left <= 0

    def take(self, steps: int) -> None:
        """Count steps that were done. Steps beyond the end of a round count in the next."""
        self._left -= steps
        self._call()

    @property
    def is_crowded(self) -> bool:
        """Whether the waiting connections hold as much memory as they may."""
        return self._held_bytes >= limits.READS_BYTES_MAX

    def wait(self, read: Callable[[], None], *, is_begun: bool, held_bytes: int = 0) -> None:
        """Call this in the next round or a later one."""
        self.leave(read)
        (self._again if is_begun else self._first)[read] = held_bytes
        self._held_bytes += held_bytes
        self._call()

    def leave(self, read: Callable[[], None]) -> None:
        """Do not call it any more."""
        for waiting in (self._first, self._again):
            self._held_bytes -= waiting.pop(read, 0)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._begin)

    def _begin(self) -> None:
        self._is_called = False
        self._left = min(self._left, 0) + limits.STEPS_PER_ROUND
        try:
            while not self.is_over and (self._first or self._again):
                self._call_next()
        finally:
            # If one fails, the others still get their turn.
            if self._first or self._again or self._left < limits.STEPS_PER_ROUND:
                self._call()

    def _call_next(self) -> None:
        """Call one callback, from the queue that has had less."""
        if not (self._first and self._again):
            self._ahead = 0
        is_first = bool(self._first) and (self._ahead <= 0 or not self._again)
        read, left = next(iter(self._first if is_first else self._again)), self._left
        self.leave(read)
        read()
        # A turn in which nothing was read counts as well.
        steps = max(1, left - self._left)
        self._ahead += steps if is_first else -steps
