"""Runners for tests: a store, a `LineRunner` and `Stages` with an answerer that does as told."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path

from jitney.engine.answer import Usage
from jitney.engine.clock import SystemClock
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.answer_line import LineAnswerer
from jitney.server.batches.rows import LineResult, StoredBatch, StoredLine
from jitney.server.batches.runner import LineRunner
from jitney.server.batches.stages import BatchBounds, Stages, Times
from jitney.server.batches.store import StoreThread
from tests.unit.server.batches.store_for_tests import (
    NOW,
    add_file,
    begun,
    input_of,
    new_batch,
    result,
)

WAIT_S = 100.0
ONE_TOKEN = Usage(prompt_count=1, completion_count=0, cached_count=0)

Script = Callable[[str, str], Awaitable[None]]
"""What happens to a line of this owner, with this text, before it is answered."""


async def at_once(owner: str, text: str) -> None:
    """Answer at once."""


async def run_until(
    holds: Callable[[], Awaitable[bool]], *work: Coroutine[None, None, None]
) -> None:
    """Do this work until something holds, with a limit."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        async with asyncio.timeout(WAIT_S):
            while not await holds():
                await asyncio.sleep(0.005)
                assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class ScriptedAnswerer(LineAnswerer):
    """Answers each line with one token, after what the script does."""

    script: Script
    in_flight_max: int = 4
    line_bytes_max: int = 1000
    values_max: int = 1000
    is_open: bool = True
    asked: Counter[str] = field(default_factory=Counter)
    asked_alone: Counter[str] = field(default_factory=Counter)
    last_ids: dict[str, str] = field(default_factory=dict)
    """The id of the last request for each line."""
    in_flight: int = 0
    most_in_flight: int = 0

    def serves(self, owner: str, model: str) -> bool:
        return model == "fake"

    async def answer(
        self,
        batch: StoredBatch,
        line: StoredLine,
        content: bytes,
        request_id: str,
        *,
        is_suspect: bool = False,
    ) -> LineResult:
        text = content.decode().strip()
        self.asked[text] += 1
        self.asked_alone[text] += is_suspect
        self.last_ids[text] = request_id
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.script(batch.owner, text)
        finally:
            self.in_flight -= 1
        return replace(result(batch, line.number), usage=ONE_TOKEN)


class Bench:
    """A runner and stages over a store in a folder."""

    def __init__(
        self,
        folder: Path,
        script: Script = at_once,
        *,
        allowances: Allowances | None = None,
        bounds: BatchBounds | None = None,
        times: Times | None = None,
    ) -> None:
        self.thread = StoreThread(folder)
        self.thread.open()
        self.answerer = ScriptedAnswerer(script)
        allowances = allowances or Allowances((), SystemClock())
        self.runner = LineRunner(self.thread, self.answerer, allowances)
        self.stages = Stages(
            self.thread,
            self.answerer,
            self.runner,
            times=times or Times(SystemClock(), lambda: NOW),
            bounds=bounds or BatchBounds(),
        )

    async def begin(self, owner: str, count: int) -> StoredBatch:
        """A batch whose lines can be run."""
        batch = await self.thread.call(lambda store: begun(store, count, owner))
        self.runner.begin(batch)
        return batch

    async def create(self, count: int) -> StoredBatch:
        """A batch whose input is to be checked."""
        content = input_of(*(f"c{number}" for number in range(count)))
        return await self.thread.call(
            lambda store: store.batches.create(new_batch(add_file(store, content)))
        )

    def input_path(self, batch: StoredBatch) -> Path:
        return self.thread.store.content.path_of(batch.input_file_id)

    async def now(self, batch: StoredBatch) -> StoredBatch:
        return await self.thread.call(lambda store: store.batches.get(batch.serial))

    async def run_until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Run lines until this holds, with a limit."""
        await run_until(holds, self.runner.run())

    async def run_to_end(self, *batches: StoredBatch) -> StoredBatch:
        """Run lines until all of these have their results; the first batch then."""

        async def are_settled() -> bool:
            return all([(await self.now(batch)).is_settled for batch in batches])

        await self.run_until(are_settled)
        return await self.now(batches[0])

    async def move_until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Run lines and move batches until this holds, with a limit."""
        await run_until(holds, self.runner.run(), self.stages.run())

    async def is_ended(self, batch: StoredBatch) -> bool:
        return not (await self.now(batch)).status.is_live

    async def move_to_end(self, batch: StoredBatch) -> StoredBatch:
        """Run lines and move batches until this one has ended; what it is then."""
        await self.move_until(lambda: self.is_ended(batch))
        return await self.now(batch)
