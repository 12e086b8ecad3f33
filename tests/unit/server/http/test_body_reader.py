"""Tests of `jitney.server.http.body_reader`: work goes on while its client is there, no longer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from jitney.server.error_object import ClientLeft
from jitney.server.http.body_reader import unless_left, wait_disconnect

LIMIT_S = 100.0
pytestmark = pytest.mark.anyio
LEFT: Message = {"type": "http.disconnect"}
MORE: Message = {"type": "http.request", "body": b"x"}


def receiving(*messages: Message) -> Callable[[], Awaitable[Message]]:
    """What gives these messages, and then none."""
    left = list(messages)

    async def receive() -> Message:
        if left:
            return left.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    return receive


async def test_what_is_made_is_given() -> None:
    """Guards the ordinary call, whose client sends nothing more or a little."""
    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    work.set_result("made")
    assert await unless_left(work, receiving(MORE)) == "made"


async def test_work_for_nobody_is_cancelled() -> None:
    """Guards the threads: what waits for its turn is not begun."""
    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ClientLeft):
            await unless_left(work, receiving(MORE, LEFT))
    assert work.cancelled()


async def test_a_client_that_is_silent_is_pinged_until_it_leaves() -> None:
    """Guards proxies that close what is silent, and the wait itself against their pings."""
    pings: list[bool] = []
    gone = asyncio.Event()

    async def receive() -> Message:
        await gone.wait()
        return LEFT

    async def ping() -> None:
        pings.append(True)
        if len(pings) == 3:
            gone.set()

    async with asyncio.timeout(LIMIT_S):
        await wait_disconnect(receive, 0.001, ping)
    assert len(pings) >= 3
