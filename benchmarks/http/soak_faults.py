"""The faults of the soak, and the reader of the server's log, which is one of them.

Each fault takes a few seconds at most and undoes itself. The faults are data: a name and what it
does to a server.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.http.ledger import PATH
from benchmarks.http.served import Served
from benchmarks.http.soak_load import KEYS
from benchmarks.http.wire import HOST, Connection

STOPPED_S = 2.0
LEAVERS = 12
SLOW_READERS, SLOW_S = 5, 8.0
FLOOD = 400
LOG_PAUSE_S = 5.0


@dataclass(slots=True)
class LogReader:
    """Reads a server's log from a pipe on a thread of its own, unless it is told to pause."""

    file: int
    lines: int = 0
    tracebacks: list[str] = field(default_factory=list)
    paused_until_s: float = 0.0

    def run(self) -> None:
        """Until the other end is closed."""
        with os.fdopen(self.file, encoding="utf-8", errors="replace") as log:
            for line in log:
                self.lines += 1
                if "Traceback" in line:
                    self.tracebacks.append(line.rstrip())
                while (left_s := self.paused_until_s - time.monotonic()) > 0:
                    time.sleep(min(left_s, 0.1))


@contextlib.contextmanager
def log_pipe() -> Iterator[tuple[int, LogReader]]:
    """The end of a pipe for a server to log to, and who reads it."""
    read_end, write_end = os.pipe()
    reader = LogReader(read_end)
    thread = threading.Thread(target=reader.run, name="log", daemon=True)
    thread.start()
    try:
        yield write_end, reader
    finally:
        with contextlib.suppress(OSError):
            os.close(write_end)
        thread.join(10.0)


async def _nothing(server: Served, log: LogReader) -> None:
    """Now and then all is well for a while."""


async def _kill(server: Served, log: LogReader) -> None:
    worker = server.worker()
    if worker is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


async def _stop(server: Served, log: LogReader) -> None:
    worker = server.worker()
    if worker is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        os.kill(worker, signal.SIGCONT)


async def _crash(server: Served, log: LogReader) -> None:
    """A client with many streams is gone, without a word."""
    opened = [await Connection.open(server.port, KEYS[0]) for _ in range(LEAVERS)]
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}
    async with asyncio.TaskGroup() as group:
        for connection in opened:
            group.create_task(connection.begin(PATH, body))
    for connection in opened:
        connection.reset()


async def _slow(server: Served, log: LogReader) -> None:
    """Clients that ask for much and read nothing, for a while."""
    opened = [await Connection.open(server.port, KEYS[1]) for _ in range(SLOW_READERS)]
    body = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True, "logprobs": 5}
    for connection in opened:
        head = await connection.begin(PATH, body)
        if head.status == 200:
            connection.pause()
    await asyncio.sleep(SLOW_S)
    for connection in opened:
        connection.close()


async def _flood(server: Served, log: LogReader) -> None:
    """Many connections at once that say nothing."""

    async def one() -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, server.port)
            await asyncio.sleep(STOPPED_S)
            writer.close()

    await asyncio.gather(*(one() for _ in range(FLOOD)))


async def _unread_log(server: Served, log: LogReader) -> None:
    log.paused_until_s = time.monotonic() + LOG_PAUSE_S
    await asyncio.sleep(LOG_PAUSE_S)


FAULTS: Mapping[str, Callable[[Served, LogReader], Awaitable[None]]] = {
    "kill -9": _kill,
    "SIGSTOP": _stop,
    "crash of a client": _crash,
    "slow readers": _slow,
    "flood": _flood,
    "unread log": _unread_log,
    "nothing": _nothing,
}
