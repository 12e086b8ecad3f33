"""Room for what streams of stored responses hold: `FeedRoom`. Event loop.

A stream asks for room before it reads something large, and gives it back when its client has taken
that. Who finds none waits in line. So a thousand slow readers of long answers hold no more than
the limits say; who takes nothing at all is cut by `jitney.server.http`.

Tests: tests/unit/server/openai_responses/test_feed_room.py.
"""

import asyncio
from collections import Counter

from jitney.server.openai_responses import limits


class FeedRoom:
    """Who holds how much, and who waits for room. A stream is known by its event, which is set when
    there is room for it."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._granted: dict[asyncio.Event, tuple[str, int]] = {}
        self._waiting: dict[asyncio.Event, tuple[str, int]] = {}
        self.held_bytes = 0
        """What all hold. Any thread may look."""

    @property
    def waiting_count(self) -> int:
        """Streams that wait for room. Any thread may look."""
        return len(self._waiting)

    def granted(self, news: asyncio.Event) -> int:
        """How much room the stream has."""
        return self._granted.get(news, ("", 0))[1]

    def ask(self, news: asyncio.Event, owner: str, size: int) -> bool:
        """Whether this much room is there now; if not, the stream stands in line."""
        self._give_back(news)
        self._waiting[news] = owner, size
        self._grant()
        return news in self._granted

    def leave(self, news: asyncio.Event) -> None:
        """The stream holds nothing, and waits for nothing."""
        self._waiting.pop(news, None)
        self._give_back(news)
        self._grant()

    def _give_back(self, news: asyncio.Event) -> None:
        owner, size = self._granted.pop(news, ("", 0))
        self.held_bytes -= size
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]

    def _grant(self) -> None:
        """Let those in line have what there is: nobody overtakes a stream of the same key."""
        behind: set[str] = set()
        for news, (owner, size) in list(self._waiting.items()):
            if owner in behind or not self._fits(owner, size):
                behind.add(owner)
                continue
            self._granted[news] = self._waiting.pop(news)
            self._held[owner] += size
            self.held_bytes += size
            news.set()

    def _fits(self, owner: str, size: int) -> bool:
        held, held_by_all = self._held[owner], self.held_bytes
        fits_key = not held or held + size <= limits.FEEDS_KEY_BYTES
        return fits_key and (not held_by_all or held_by_all + size <= limits.FEEDS_BYTES)
