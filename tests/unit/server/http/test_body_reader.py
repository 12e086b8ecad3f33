"""Tests of `jitney.server.http.body_reader`: work goes on while its client is there, no longer."""

import asyncio
from collections.abc import Callable

import pytest
from starlette.requests import Request
from starlette.types import Message

from jitney.server.error_object import ClientLeft
from jitney.server.http.body_reader import unless_left

LIMIT_S = 100.0
pytestmark = pytest.mark.anyio
LEFT: Message = {"type": "http.disconnect"}
MORE: Message = {"type": "http.request", "body": b"x"}


def receiving(*messages: Message) -> Request:
    """A call that gets these messages, and then none."""
    left = list(messages)

    async def receive() -> Message:
        if left:
            return left.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    return Request({"type": "http"}, receive)


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


async def test_a_cancelled_call_does_not_say_that_its_client_left() -> None:
    """Guards a shutdown: it cancels calls whose clients are there."""
    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    calling = asyncio.create_task(unless_left(work, receiving(MORE)))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert work.cancelled()


async def test_a_connection_that_tells_when_its_client_left_needs_no_task() -> None:
    """Guards our own connections: whoever asks is told once, and not after the work has ended."""
    asked: list[Callable[[], None]] = []

    def when_left(act: Callable[[], None]) -> Callable[[], None]:
        asked.append(act)
        return asked.clear

    scope = {"type": "http", "extensions": {"jitney.when_left": when_left}}
    request, loop = Request(scope, receiving().receive), asyncio.get_running_loop()
    made: asyncio.Future[str] = loop.create_future()
    made.set_result("made")
    assert await unless_left(made, request) == "made"
    assert not asked
    for is_cancelled_too in (False, True):
        calling = asyncio.create_task(unless_left(loop.create_future(), request))
        await asyncio.sleep(0)
        asked[0]()
        if is_cancelled_too:
            calling.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled_too else ClientLeft):
            await calling
        assert not asked
