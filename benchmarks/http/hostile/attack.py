"""What an attack is: data, and one function that does it to a `Target`.

To add one, write `async def my_attack(target: Target) -> None` in the module of its subject and a
line in that module's ATTACKS. It runs in a process of its own until it returns or its seconds are
over, whichever comes first; what it opened dies with its process. It should be cheap: it shares
the machine with the server that it attacks, as real attackers do not.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.http.wire import HOST, Json

GAP_MS_MAX = 250.0
CHAT_MS_MAX = 2000.0
"""For one more short question, asked while others are served: it may stand in a queue."""

MEMORY_MIB = 30.0
SECONDS = 4.0
REPLY_S_MAX = 30.0
PIECE_BYTES = 1 << 20
_BACK_OFF_S = 0.02
"""After a connection that failed: a server that is gone is not called without a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the server is started for an attack; equal ones share a server."""

    flags: tuple[str, ...] = ()
    template: str | None = None
    """One of `templates.TEMPLATES`, in place of the model's own."""
    log: Literal["kept", "unread", "full"] = "kept"
    """Where its log goes: a file, a pipe that nobody reads, a disk without room."""
    is_json_wanted: bool = False
    """The bystander's question is answered by a schema, always the same."""
    keeps_answers: bool = False
    """Whether it has a folder for what it is to keep."""
    memory_more_mib: int | None = None
    """A limit on memory, so much above what it takes at rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much worse than calm a bystander may fare, in ms; wider ones say why."""

    gap_ms: float = GAP_MS_MAX
    health_ms: float = GAP_MS_MAX
    chat_ms: float | None = CHAT_MS_MAX
    """None: a new question may wait or be refused."""
    memory_mib: float = MEMORY_MIB
    """What memory may stay, of the server and of its children."""
    processes: int = 0
    """Processes that may be started and stay, with their files and threads."""
    may_fail: frozenset[str] = frozenset()
    """Which of stream, health and chat may fail outright."""
    because: str = ""


@dataclass(slots=True)
class Target:
    """The server as an attacker sees it, and the ledger of what it told."""

    port: int
    pid: int
    key: str
    model_len: int = 4096
    end_name: str = "<|end|>"
    """How the model's end token is written."""
    told: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def ask(self, line: str, body: bytes = b"", *, head: str = "", key: bool = True) -> str:
        """One request on a connection of its own, read to its end; what came of it, counted."""
        return await self.send(self.request(line, body, head=head, key=key))

    async def post(self, path: str, body: Json) -> str:
        """The same for JSON."""
        return await self.ask(f"POST {path}", json.dumps(body).encode())

    def request(self, line: str, body: bytes = b"", *, head: str = "", key: bool = True) -> bytes:
        """The bytes of a request after which the connection is to be closed."""
        who = f"Authorization: Bearer {self.key}\r\n" if key else ""
        told = (
            f"{line} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{who}{head}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return told.encode() + body

    async def send(self, request: bytes, reply_s_max: float = REPLY_S_MAX) -> str:
        """Send these bytes on a connection of its own and read to its end; what came, counted."""
        told = "no answer"
        writer = None
        try:
            async with asyncio.timeout(reply_s_max):
                reader, writer = await asyncio.open_connection(HOST, self.port)
                writer.write(request)
                told = status_of(await reader.read(PIECE_BYTES))
                while await reader.read(PIECE_BYTES):
                    pass
        except (OSError, TimeoutError) as error:
            if told == "no answer":
                told = type(error).__name__
            await asyncio.sleep(_BACK_OFF_S)
        except asyncio.CancelledError:
            self.told["given up"] += 1
            raise
        finally:
            if writer is not None:
                writer.close()
        self.told[told] += 1
        return told


Run = Callable[[Target], Coroutine[Any, Any, None]]  # Any: nothing is sent in or out


def never_missing() -> str | None:
    """Most attacks can be done anywhere."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One line of the table."""

    name: str
    text: str
    run: Run
    needs_key: bool = True
    seconds: float = SECONDS
    setup: Setup = Setup()
    bounds: Bounds = Bounds()
    missing: Callable[[], str | None] = never_missing
    """Why it cannot be done here, if so."""
    is_usual: bool = True
    """False: done only when it is named."""


def status_of(answer: bytes) -> str:
    """The status of an answer that begins like this."""
    if not answer:
        return "closed"
    words = answer[:64].split(b" ", 2)
    is_http = words[0].startswith(b"HTTP/") and len(words) > 1 and words[1].isdigit()
    return words[1].decode() if is_http else "no HTTP"


async def crowd(count: int, once: Callable[[int], Awaitable[object]], times: int = 1 << 30) -> None:
    """So many at once, each over and over."""

    async def member(number: int) -> None:
        for _ in range(times):
            await once(number)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(member(number))


@contextlib.asynccontextmanager
async def connected(target: Target) -> Any:  # Any: an async iterator of a reader and a writer
    """A connection, closed at the end; a refusal is counted and raised."""
    try:
        reader, writer = await asyncio.open_connection(HOST, target.port)
    except OSError as error:
        target.told[type(error).__name__] += 1
        await asyncio.sleep(_BACK_OFF_S)
        raise
    try:
        yield reader, writer
    finally:
        writer.close()


def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the other side has ended the connection."""
    return reader.at_eof() or reader.exception() is not None


def now() -> float:
    """Seconds that only count up."""
    return time.monotonic()
