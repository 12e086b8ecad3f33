"""Tests of `ReadingTurns`: a suspect is tokenised alone, and waits for its turn as others do."""

import asyncio

import pytest

from jitney.server.batches.answer_line import ReadingTurns

pytestmark = pytest.mark.anyio


class Reader:
    """A line that is tokenised until the test lets it end."""

    def __init__(self, turns: ReadingTurns, *, is_alone: bool = False) -> None:
        self._turns = turns
        self._is_alone = is_alone
        self.has_turn = False
        self.may_end = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self._turns.taken(is_alone=self._is_alone):
            self.has_turn = True
            try:
                await self.may_end.wait()
            finally:
                self.has_turn = False

    async def end(self) -> None:
        self.may_end.set()
        await self.task


async def settled() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_that_is_alone_waits_for_those_before_it_and_is_not_overtaken() -> None:
    """Guards the blame: what else is tokenised meanwhile may be what ends the backend. And a
    suspect comes to its turn, however many others come after it."""
    turns = ReadingTurns()
    first, second = Reader(turns), Reader(turns)
    await settled()
    assert (first.has_turn, second.has_turn) == (True, True)
    suspect, after = Reader(turns, is_alone=True), Reader(turns)
    await first.end()
    await settled()
    assert (suspect.has_turn, after.has_turn) == (False, False)
    await second.end()
    await settled()
    assert (suspect.has_turn, after.has_turn) == (True, False)
    await suspect.end()
    await settled()
    assert after.has_turn
    await after.end()


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_turn_that_is_cut_short_is_given_back(*, is_alone: bool) -> None:
    """Guards all batches against the cancel of one: no line would be read any more."""
    turns = ReadingTurns()
    readers = [Reader(turns, is_alone=is_alone), Reader(turns, is_alone=True)]
    await settled()
    for reader in readers:
        reader.task.cancel()
    await asyncio.gather(*(each.task for each in readers), return_exceptions=True)
    last = Reader(turns, is_alone=True)
    await settled()
    assert last.has_turn
    await last.end()
