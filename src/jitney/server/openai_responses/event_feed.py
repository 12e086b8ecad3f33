"""Events of a stored response for its readers: `feed`, which waits for more. Event loop.

`EventReplay` makes events again from the row and its pieces, turn by turn. Between turns nothing of
the answer is held, and a turn that needs much waits for room: what a slow client has not taken is
in the store.

Tests: tests/e2e/openai_responses/test_stored.py, test_feeds.py and test_background.py.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from jitney.errors import Draining
from jitney.server.batches.store import StoreThread, until_disk_works
from jitney.server.error_object import Refusal
from jitney.server.limits import PING_S
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.event_replay import EventReplay, ReplayTurn
from jitney.server.openai_responses.feed_room import FeedRoom
from jitney.server.service import Service

_PING = b": ping\n\n"


class Watchers:
    """Who waits for news of which response. Event loop."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._counts: dict[str, int] = {}
        self.room = FeedRoom()

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
        self.room.leave(news)
        self._waiting[serial].discard(news)
        if not self._waiting[serial]:
            del self._waiting[serial]
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


async def feed(
    service: Service, thread: StoreThread, watchers: Watchers, owner: str, replay: EventReplay
) -> AsyncIterator[bytes]:
    """Its events, until the response has ended or the server stops."""
    idle_s = 0.0
    room = watchers.room
    with watchers.watching(owner, replay.serial) as news:
        while not service.is_stopping:
            # First: what comes from now on is news again.
            news.clear()
            ask = partial(replay.turn, room=max(room.granted(news), limits.FEED_FREE_BYTES))
            read = partial(thread.call, ask)
            turn = await until_disk_works(read, "A stream waits for the disk")
            has_more = turn.is_short and room.ask(news, owner, turn.size)
            if not turn.is_short:
                try:
                    parts = await _read(service, owner, replay, turn)
                except Draining:
                    return
                for part in parts:
                    idle_s = 0.0
                    for start in range(0, len(part), limits.FEED_CHUNK_BYTES):
                        yield part[start : start + limits.FEED_CHUNK_BYTES]
                if replay.is_over:
                    return
                room.leave(news)
                has_more = replay.has_more
            while not (has_more or service.is_stopping or await _is_news(news)):
                idle_s += limits.FEED_TURN_S
                if idle_s >= PING_S:
                    idle_s = 0.0
                    yield _PING
                    break


async def _read(service: Service, owner: str, replay: EventReplay, turn: ReplayTurn) -> list[bytes]:
    """The events of a turn. What is large is made by one thread, for all readers."""
    is_large = turn.size > limits.FEED_FREE_BYTES
    threads = service.long_replies if is_large else service.worker_threads
    return await threads.submit((owner, False), partial(replay.read, turn))


async def _is_news(news: asyncio.Event) -> bool:
    """Wait a moment for news; whether there is any."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.FEED_TURN_S):
            await news.wait()
    return news.is_set()
