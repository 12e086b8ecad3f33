"""A value that takes a while to make and is the same for everyone: `Shared`. Event loop.

However many ask, it is made once at a time, in a thread. Before it is made again for those who came
meanwhile, there is a pause of the same length: half of the time belongs to others. All who waited
get the same value, and never one that was begun before they asked.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Shared(Generic[Made]):
    """What `make` gives, on a thread other than the event loop's."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._current: asyncio.Task[Made] | None = None
        self._next: asyncio.Task[Made] | None = None
        self._rests_until = 0.0

    async def get(self) -> Made:
        """One that is begun from here on."""
        if self._next is None:
            self._next = asyncio.create_task(self._make_after(self._current))
        # Shielded, because others wait for the same one.
        return await asyncio.shield(self._next)

    async def _make_after(self, before: asyncio.Task[Made] | None) -> Made:
        if before is not None and not before.done():
            await asyncio.wait({before})
        loop = asyncio.get_running_loop()
        rest_s = self._rests_until - loop.time()
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        self._current, self._next = self._next, None
        began_at = loop.time()
        try:
            return await asyncio.to_thread(self._make)
        finally:
            ended_at = loop.time()
            self._rests_until = ended_at + (ended_at - began_at)
