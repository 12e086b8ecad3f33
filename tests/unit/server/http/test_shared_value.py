"""What is shared: one at a time, and never one that was begun before somebody asked."""

import asyncio
import threading

import pytest

from jitney.server.http.shared_value import SharedValue

WAIT_S = 100.0


class Maker:
    """Counts what it makes, and waits until it may."""

    def __init__(self) -> None:
        self.count = 0
        self.at_once = self.at_once_most = 0
        self.may_end = threading.Event()

    def make(self) -> int:
        self.count += 1
        self.at_once += 1
        self.at_once_most = max(self.at_once_most, self.at_once)
        number = self.count
        assert self.may_end.wait(WAIT_S), "nobody let it end"
        self.at_once -= 1
        return number


@pytest.mark.anyio
async def test_a_crowd_shares_one_that_is_begun_after_all_of_them_asked() -> None:
    """Guards everyone else: forty scrapers at once were forty threads that each wanted the
    interpreter before the event loop did. And the crowd: what it gets is never too old."""
    maker = Maker()
    shared = SharedValue(maker.make)
    first = asyncio.create_task(shared.get())
    async with asyncio.timeout(WAIT_S):
        while maker.count == 0:  # noqa: ASYNC110, it is counted on another thread
            await asyncio.sleep(0)
        crowd = [asyncio.create_task(shared.get()) for _ in range(40)]
        leaving = asyncio.create_task(shared.get())
        await asyncio.sleep(0)
        leaving.cancel()
        maker.may_end.set()
        made = [await first, *(await asyncio.gather(*crowd)), await shared.get()]
    assert made == [1, *[2] * 40, 3]
    assert maker.at_once_most == 1
