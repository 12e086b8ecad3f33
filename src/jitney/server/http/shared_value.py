"""A value that is slow to make and the same for everyone: `SharedValue`. Event loop.

A thread makes it once at a time, however many callers wait. Before it is made again, there is a
pause of the same length, so half of the time is left for other work. All callers that wait get the
same value, and never one that was begun before they called.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class SharedValue(Generic[ValueT]):
    """The result of `make`, which runs on another thread."""

    def __init__(self, make: Callable[[], ValueT]) -> None:
        self._make = make
        self._current: asyncio.Task[ValueT] | None = None
        self._next: asyncio.Task[ValueT] | None = None
        self._rests_until = 0.0

    async def get(self) -> ValueT:
        """A value whose making begins after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._make_after(self._current))
        # Shielded, because others wait for the same value.
        return await asyncio.shield(self._next)

    async def _make_after(self, before: asyncio.Task[ValueT] | None) -> ValueT:
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
