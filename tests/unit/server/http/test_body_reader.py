"""Tests of `jitney.server.http.body_reader`: work goes on while its client is there, no longer."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message

from jitney.server.error_object import ClientLeft
from jitney.server.http.body_reader import unless_left, wait_disconnect

LIMIT_S = 100.0
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


def outcome(
    prepare: Callable[["asyncio.Future[str]"], object],
    *messages: Message,
) -> tuple[object, bool]:
    """What comes of work after `prepare`, an error too; and whether the work was cancelled."""

    async def run() -> tuple[object, bool]:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        prepare(work)
        async with asyncio.timeout(LIMIT_S):
            try:
                return await unless_left(work, receiving(*messages)), work.cancelled()
            except Exception as error:
                return type(error), work.cancelled()

    return asyncio.run(run())


def nothing(work: object) -> None:
    """It is never done."""


def test_what_is_made_is_given() -> None:
    """Guards the ordinary call, whose client sends nothing more or a little."""
    assert outcome(lambda work: work.set_result("made"), MORE) == ("made", False)


def test_work_for_nobody_is_cancelled() -> None:
    """Guards the threads: what waits for its turn is not begun."""
    assert outcome(nothing, MORE, LEFT) == (ClientLeft, True)


def test_a_client_that_is_silent_is_pinged_until_it_leaves() -> None:
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

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            await wait_disconnect(receive, 0.001, ping)

    asyncio.run(run())
    assert len(pings) >= 3
