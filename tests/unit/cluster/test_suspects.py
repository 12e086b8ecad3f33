"""The turn of suspects: one at a time, and nobody waits for ever."""

import asyncio
from typing import cast

import pytest

from jitney.errors import QueueFull
from jitney_cluster import suspects
from jitney_cluster.accounts import MovingRequest
from jitney_cluster.suspects import SuspectTurn


def suspect() -> MovingRequest:
    """Only who it is counts."""
    return cast(MovingRequest, object())


def test_the_next_one_runs_when_the_turn_is_given_back_by_who_has_it() -> None:
    async def test() -> None:
        turn, first, second = SuspectTurn(), suspect(), suspect()
        await turn.take(first, None)
        taking = asyncio.create_task(turn.take(second, None))
        turn.give_back(second)
        await asyncio.sleep(0.01)
        assert not taking.done()
        turn.give_back(first)
        await taking
        turn.give_back(first)  # it is not its turn any more
        with pytest.raises(TimeoutError):
            await turn.take(suspect(), 0.01)

    asyncio.run(test())


def test_a_turn_that_does_not_come_is_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "PLACE_S_MAX", 0.01)

    async def test() -> None:
        turn = SuspectTurn()
        await turn.take(suspect(), None)
        with pytest.raises(QueueFull, match="tried before it"):
            await turn.take(suspect(), None)

    asyncio.run(test())
