"""Events of a stored response, from any number on: `EventReplay`, and `feed`, which waits for more.

`EventReplay` makes events again from the row and its pieces, in a worker thread. `feed` is on the
event loop. It holds nothing of the answer: what a slow client has not taken is in the store.

Tests: tests/e2e/openai_responses/test_stored.py and test_background.py.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from jitney.errors import Draining
from jitney.server.batches.store import BatchStore, StoreThread, until_disk_works
from jitney.server.error_object import Refusal
from jitney.server.limits import PING_S
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.item_events import DONE, ItemWriter, push
from jitney.server.openai_responses.response_table import ResponseTable
from jitney.server.openai_responses.stored_rows import (
    MALFORMED,
    UNREADABLE,
    Damaged,
    ResponseProgress,
    Rows,
    StoredResponse,
    pieces_from,
    progress_of,
)
from jitney.server.service import Service

_PING = b": ping\n\n"
_DELETED = "The response was deleted, or has expired, while it was read; no more of it comes."


class Watchers:
    """Who waits for news of which response. Event loop."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._counts: dict[str, int] = {}

    @property
    def count(self) -> int:
        """How many streams there are. Any thread."""
        return sum(list(self._counts.values()))

    def check(self, owner: str) -> None:
        """Raise Refusal if the owner has as many as may be."""
        if self._counts.get(owner, 0) >= limits.FEEDS_KEY_MAX:
            message = f"{limits.FEEDS_KEY_MAX} streams of this key are read, as many as may be."
            raise Refusal("too_many_responses", message)

    @contextmanager
    def watching(self, owner: str, serial: int) -> Iterator[asyncio.Event]:
        """Set when there is news of this response."""
        news = asyncio.Event()
        self._waiting.setdefault(serial, set()).add(news)
        self._counts[owner] = self._counts.get(owner, 0) + 1
        try:
            yield news
        finally:
            self._leave(owner, serial, news)

    def tell(self, serial: int) -> None:
        """There is news of this response."""
        for news in self._waiting.get(serial, ()):
            news.set()

    def _leave(self, owner: str, serial: int, news: asyncio.Event) -> None:
        self._waiting[serial].discard(news)
        if not self._waiting[serial]:
            del self._waiting[serial]
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


class EventReplay:
    """The events of one stored response behind a number, as far as they are."""

    def __init__(self, found: StoredResponse, after: int) -> None:
        self.serial = found.serial
        self._state = found.state
        self._writer = ItemWriter(found.state.id, after)
        self._piece_number = 0
        self._is_told = self._is_started = False
        self.has_more = True
        """Whether there was more to read at once."""
        self.is_over = False

    def rows(self, store: BatchStore) -> tuple[sqlite3.Row | None, Rows]:
        """What is new in the store. Its thread."""
        table = ResponseTable(store.database)
        progress = table.progress(self.serial)
        return progress, table.pieces(self.serial, self._piece_number, limits.READ_PIECES)

    def read(self, progress: sqlite3.Row | None, rows: Rows) -> bytes:
        """Events of these rows; the last is an error if they are gone, or cannot be read. A worker
        thread."""
        try:
            if progress is not None:
                return self._events(progress_of(progress), rows)
        except (Damaged, *MALFORMED):
            self.is_over = True
            return self._writer.error("server_error", UNREADABLE)
        self.is_over = True
        return self._writer.error("response_not_found", _DELETED)

    def _events(self, progress: ResponseProgress, rows: Rows) -> bytes:
        events = [self._opening(progress.is_started)]
        pieces = pieces_from(rows, self._piece_number)
        for piece in pieces:
            self._piece_number = piece.number
            events += [push(self._writer, each) for each in piece.deltas]
        self.has_more = len(pieces) == limits.READ_PIECES
        if not self.has_more and progress.status not in ("queued", "in_progress"):
            self.is_over = True
            whole = progress.status == "completed"
            events.append(self._writer.close("completed" if whole else "incomplete"))
            self._state.status, self._state.usage = progress.status, progress.usage
            self._state.error, self._state.completed_at = progress.error, progress.completed_at
            self._state.output = self._writer.items
            events.append(self._writer.end(self._state.object()) + DONE)
        return b"".join(events)

    def _opening(self, is_started: bool) -> bytes:
        """The first events, with the response as it was then."""
        events = []
        status = "queued" if self._state.is_background else "in_progress"
        fresh = replace(self._state, output=[], usage=None, error=None, completed_at=None)
        told = replace(fresh, status=status).object()
        if not self._is_told:
            self._is_told = True
            events.append(self._writer.tell("response.created", told))
            if status == "queued":
                events.append(self._writer.tell("response.queued", told))
        if is_started and not self._is_started:
            self._is_started = True
            events.append(
                self._writer.tell("response.in_progress", {**told, "status": "in_progress"})
            )
        return b"".join(events)


async def feed(
    service: Service, thread: StoreThread, watchers: Watchers, owner: str, replay: EventReplay
) -> AsyncIterator[bytes]:
    """Its events, until the response has ended or the server stops."""
    threads = service.worker_threads
    idle_s = 0.0
    with watchers.watching(owner, replay.serial) as news:
        while not service.is_stopping:
            # First: what comes from now on is news again.
            news.clear()
            read = partial(thread.call, replay.rows)
            rows = await until_disk_works(read, "A stream waits for the disk")
            try:
                events = await threads.submit((owner, False), partial(replay.read, *rows))
            except Draining:
                return
            if events:
                idle_s = 0.0
                yield events
            if replay.is_over:
                return
            while not (replay.has_more or service.is_stopping or await _is_news(news)):
                idle_s += limits.FEED_TURN_S
                if idle_s >= PING_S:
                    idle_s = 0.0
                    yield _PING
                    break


async def _is_news(news: asyncio.Event) -> bool:
    """Wait a moment for news; whether there is any."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.FEED_TURN_S):
            await news.wait()
    return news.is_set()
