"""Submits any number of prompts to an engine with a bounded queue; answers are read in order.

The first prompts are submitted together, so that they share ticks from the start. The others follow
when earlier ones end. Main thread.

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
"""How many prompts are submitted ahead of the one that is read."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted prompt, with its handle or the error that refused it."""

    index: int
    outcome: Handle[RequestOutput] | JitneyError

    @property
    def handle(self) -> Handle[RequestOutput]:
        """The handle of the request. Raises the error if it was refused."""
        if isinstance(self.outcome, JitneyError):
            raise self.outcome
        return self.outcome


def ask_all(llm: LLM, prompts: list[Prompt], params: SamplingParams) -> Iterator[Submitted]:
    """Each prompt in order, while it is answered. To leave the loop early cancels the rest."""
    window = _Window(llm, prompts, params)
    try:
        for index in range(len(prompts)):
            window.fill(index)
            yield window.submitted.pop(index)
    finally:
        for handle in window.live():
            handle.cancel()


class _Window:
    """The prompts that were submitted and not yet read, and those that follow."""

    def __init__(self, llm: LLM, prompts: list[Prompt], params: SamplingParams) -> None:
        self._llm = llm
        self._prompts = prompts
        self._params = params
        self.submitted: dict[int, Submitted] = {}
        asyncio.run(self._fill_together(min(AHEAD_MAX, len(prompts))))

    def fill(self, index: int) -> None:
        """Submit this prompt if it is not yet, and the next ones while there is room."""
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
            # `fill` submits it when it is its turn.
            return
        except JitneyError as error:
            self.submitted[index] = Submitted(index, error)

    def _submit(self, index: int) -> bool:
        """Whether there was room. Raises QueueFull if no live request of ours could make room."""
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
            # The reader of this prompt gets the error.
            with suppress(JitneyError):
                handle.result()
