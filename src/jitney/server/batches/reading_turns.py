"""Lets lines be tokenised side by side, or one of them alone: `ReadingTurns`. Event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class ReadingTurns:
    """Who may be tokenised. One that wants to be alone waits for those before it, and those after
    it wait for it."""

    def __init__(self) -> None:
        self._entry = asyncio.Lock()
        """Taken in the order in which it was asked for. One that is alone keeps it."""
        self._count = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @contextlib.asynccontextmanager
    async def taken(self, *, is_alone: bool) -> AsyncIterator[None]:
        """A turn, as long as the block lasts."""
        async with self._entry:
            if is_alone:
                await self._is_empty.wait()
                yield
                return
            self._count += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._is_empty.set()
