"""Waiting for the client to leave, and for work unless it does. Event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.types import Receive

from jitney.errors import Draining
from jitney.server.call import late
from jitney.server.error_object import ClientLeft

Made = TypeVar("Made")


async def wait_disconnect(
    receive: Receive,
    idle_s: float | None = None,
    when_idle: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Until the client has closed the connection. Every `idle_s` meanwhile, call `when_idle`."""
    while True:
        try:
            async with asyncio.timeout(idle_s):
                if (await receive())["type"] == "http.disconnect":
                    return
        except TimeoutError:
            assert when_idle is not None, "called for nothing"
            await when_idle()


async def unless_left(
    work: "asyncio.Future[Made]", receive: Receive, left_s: float | None = None
) -> Made:
    """What the work makes, unless the client leaves before, or its time is over.

    Raises ClientLeft, DeadlineExceeded, and Draining where the work was cancelled by a shutdown.
    """
    leaving = asyncio.create_task(wait_disconnect(receive))
    try:
        either: set[asyncio.Future[Any]] = {work, leaving}  # Any: made, or nothing
        await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if work.cancelled():
            raise Draining("the server was shut down.")
        if not work.done():
            raise ClientLeft if leaving.done() else late()
        return work.result()
    finally:
        # Without effect on work that has begun in a thread; what waits is not begun.
        work.cancel()
        leaving.cancel()
