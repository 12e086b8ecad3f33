"""Submits any number of prompts to a bounded engine; their answers are read in order.

The first ones are submitted together, so that they share ticks from the start; the others follow
as earlier ones end. Main thread.

Tests: tests/e2e/test_cli.py.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.api.prompts import Prompt
from jitney.core.params import SamplingParams
from jitney.engine.handle import Handle
from jitney.errors import JitneyError, QueueFull

AHEAD_MAX = 128
"""Prompts that are submitted ahead of the one that is read."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A prompt that was handed in, with its handle or why it was refused."""

    index: int
    outcome: Handle[RequestOutput] | JitneyError

    @property
    def handle(self) -> Handle[RequestOutput]:
        """Of the request. Raises why it was refused."""
        if isinstance(self.outcome, JitneyError):
            raise self.outcome
        return self.outcome


def ask_all(llm: LLM, prompts: list[Prompt], params: SamplingParams) -> Iterator[Submitted]:
    """Each prompt in order, being answered; leaving early cancels the rest."""
    window = _Window(llm, prompts, params)
    try:
        for index in range(len(prompts)):
            window.fill(index)
            yield window.submitted.pop(index)
    finally:
        for handle in window.live():
            handle.cancel()


class _Window:
    """Prompts that were handed in and not yet read, and the next ones, in order."""

    def __init__(self, llm: LLM, prompts: list[Prompt], params: SamplingParams) -> None:
        self._llm = llm
        self._prompts = prompts
        self._params = params
        self.submitted: dict[int, Submitted] = {}
        asyncio.run(self._fill_together(min(AHEAD_MAX, len(prompts))))

    def fill(self, index: int) -> None:
        """Submit this one if it is not, and those after it as far as there is room."""
        while index not in self.submitted and not self._submit(index):
            self._wait_for_room()
        for following in range(index + 1, min(index + AHEAD_MAX, len(self._prompts))):
            if following not in self.submitted and not self._submit(following):
                return

    def live(self) -> list[Handle[RequestOutput]]:
        """Handles whose requests have not ended."""
        outcomes = [each.outcome for each in self.submitted.values()]
        return [each for each in outcomes if isinstance(each, Handle) and not each.is_done]

    async def _fill_together(self, count: int) -> None:
        await asyncio.gather(*(self._submit_async(index) for index in range(count)))

    async def _submit_async(self, index: int) -> None:
        try:
            handle = await self._llm.submit_async(self._prompts[index], self._params)
            self.submitted[index] = Submitted(index, handle)
        except QueueFull:
            # Not now: it is handed in when its turn comes.
            return
        except JitneyError as error:
            self.submitted[index] = Submitted(index, error)

    def _submit(self, index: int) -> bool:
        """Whether there was room. When nothing of ours is in the queue, no waiting would help."""
        has_live = bool(self.live())
        try:
            handle = self._llm.submit(self._prompts[index], self._params)
            self.submitted[index] = Submitted(index, handle)
        except QueueFull:
            if not has_live:
                raise
            return False
        except JitneyError as error:
            self.submitted[index] = Submitted(index, error)
        return True

    def _wait_for_room(self) -> None:
        for handle in self.live()[:1]:
            # Whoever reads it is told.
            with suppress(JitneyError):
                handle.result()
