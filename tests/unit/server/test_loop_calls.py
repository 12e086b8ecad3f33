"""Tests of `LoopCalls` of `jitney.server.service`."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from jitney.server import service
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


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.0001, 0.0), (0.004, 0.016), (9.0, 0.04)])
def test_calls_rest_after_a_round_in_proportion_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, took_s: float, rest_s: float
) -> None:
    """Guards all else on the loop: rounds take a fifth of it. What comes meanwhile is one round."""
    moments = iter((0.0, took_s, took_s, took_s))
    monkeypatch.setattr(service, "thread_time", lambda: next(moments))
    called: list[int] = []
    rests: list[float] = []

    async def main() -> None:
        loop, calls = asyncio.get_running_loop(), LoopCalls()
        monkeypatch.setattr(loop, "time", lambda: 100.0)

        def call_later(seconds: float, function: Callable[[], None]) -> object:
            rests.append(seconds)
            return loop.call_soon(function)

        monkeypatch.setattr(loop, "call_later", call_later)
        calls.call(partial(called.append, 0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in (1, 2):
            calls.call(partial(called.append, number))
        for _ in range(4):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert called == [0, 1, 2]
    assert rests == ([pytest.approx(rest_s)] if rest_s else [])


def test_a_call_to_a_loop_that_is_closed_is_dropped() -> None:
    """Guards the end of a server: the engine may have news until it is stopped."""

    async def main() -> LoopCalls:
        return LoopCalls()

    calls, called = asyncio.run(main()), list[int]()
    calls.call(partial(called.append, 1))
    assert not called
