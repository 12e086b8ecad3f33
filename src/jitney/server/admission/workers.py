"""The door: slow work for callers, such as tokenising, in a few threads. Event loop.

Who is next is for `jitney.server.admission.turns` to say. An errand whose caller has left before
its turn is never begun; one that has begun is told so by its `Stay`, and ends where it looks at it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from jitney.server import limits
from jitney.server.admission.turns import Line, Turns

Made = TypeVar("Made")


@dataclass(slots=True, eq=False)
class Stay:
    """A caller at the door: whose key it has, how much it brings, and whether it waits still.

    Read by any thread.
    """

    caller: str = ""
    is_large: bool = False
    is_wanted: bool = True

    @property
    def line(self) -> Line:
        """Where it waits for its turn."""
        return self.caller, self.is_large

    def waits(self) -> bool:
        """Whether somebody still wants what is made for it."""
        return self.is_wanted


class Door:
    """Threads for what callers want made, shared among the callers. Made and used on one loop."""

    def __init__(self, *, has_several_callers: bool) -> None:
        places = limits.DOOR_THREADS
        # One place is never one caller's own where there are others.
        share = max(places - 1, 1) if has_several_callers else places
        self._turns: Turns[asyncio.Future[None]] = Turns(places, share)
        self._threads = ThreadPoolExecutor(places, thread_name_prefix="jitney-door")
        self._waiting: set[asyncio.Future[None]] = set()

    async def make(self, stay: Stay, errand: Callable[[], Made]) -> Made:
        """What the errand makes, in its turn. Cancelling it before its turn undoes it."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.add(turn)
        self._turns.enter(stay.line, turn)
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if not self._turns.withdraw(stay.line, turn):
                self._end(stay.line)
            raise
        finally:
            self._waiting.discard(turn)

        def done(_: Future[Made]) -> None:
            # On its thread; after the end of the loop nobody is next.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, stay.line)

        try:
            making = self._threads.submit(errand)
        except RuntimeError:
            # Closed since its turn came.
            self._end(stay.line)
            raise asyncio.CancelledError from None
        making.add_done_callback(done)
        return await asyncio.wrap_future(making)

    def close(self) -> None:
        """Begin nothing more; whoever waits is cancelled."""
        for turn in self._waiting:
            turn.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _end(self, line: Line) -> None:
        self._turns.end(line)
        self._call_next()

    def _call_next(self) -> None:
        while (turn := self._turns.begin()) is not None:
            if turn.cancelled():
                # Its own task has not heard of it yet, and will withdraw in vain: it ends it.
                continue
            turn.set_result(None)
