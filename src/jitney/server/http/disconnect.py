"""Waits until the client leaves, or for work that ends when it leaves. Event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.types import Receive

from jitney.errors import Draining
from jitney.server.error_object import ClientLeft

ResultT = TypeVar("ResultT")


async def wait_disconnect(
    receive: Receive,
    idle_s: float | None = None,
    when_idle: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Wait until the client closes the connection. Meanwhile, every `idle_s`, call `when_idle`."""
    while True:
        try:
            async with asyncio.timeout(idle_s):
                if (await receive())["type"] == "http.disconnect":
                    return
        except TimeoutError:
            assert when_idle is not None, "A timeout without when_idle"
            await when_idle()


async def unless_left(work: "asyncio.Future[ResultT]", receive: Receive) -> ResultT:
    """Return the result of the work, unless the client leaves first.

    Raises ClientLeft, and Draining when a shutdown cancelled the work.
    """
    leaving = asyncio.create_task(wait_disconnect(receive))
    try:
        either: set[asyncio.Future[Any]] = {work, leaving}  # Any: made, or nothing
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if work.cancelled():
            raise Draining("The server was shut down.")
        if not work.done():
            raise ClientLeft
        return work.result()
    finally:
        # Work that a thread has begun goes on; work that waits never begins.
        work.cancel()
        leaving.cancel()
