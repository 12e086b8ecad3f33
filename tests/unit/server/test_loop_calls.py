"""Tests of `LoopCalls` of `jitney.server.service`."""

import asyncio
import threading
from functools import partial

import pytest

from jitney.server.service import LoopCalls


def test_many_calls_wake_the_loop_once_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the event loop: 256 streams have news at once. A call that comes later wakes again."""
    called: list[int] = []
    woken: list[object] = []

    async def main() -> None:
        loop, calls = asyncio.get_running_loop(), LoopCalls()
        usual = loop.call_soon_threadsafe

        def counted(function: object, *others: object) -> object:
            woken.append(function)
            return usual(function, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)

        def send(first: int) -> None:
            for number in range(first, first + 100):
                calls.call(partial(called.append, number))

        for first in (0, 100):
            thread = threading.Thread(target=send, args=(first,))
            thread.start()
            thread.join()  # the loop cannot run meanwhile
            assert len(called) == first
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(main())
    assert called == list(range(200))
    assert len(woken) == 2


def test_a_call_to_a_loop_that_is_closed_is_dropped() -> None:
    """Guards the end of a server: the engine may have news until it is stopped."""

    async def main() -> LoopCalls:
        return LoopCalls()

    calls, called = asyncio.run(main()), list[int]()
    calls.call(partial(called.append, 1))
    assert not called
