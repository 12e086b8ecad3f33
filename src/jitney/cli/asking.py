"""Asks any number of prompts through a bounded engine and hands them back in their order.

The first ones are handed in together, so that they share ticks from the start; the others follow
as earlier ones end. Main thread.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.api.prompts import Prompt
from jitney.core.params import SamplingParams
from jitney.engine.handle import Handle
from jitney.errors import JitneyError, QueueFull

AHEAD_MAX = 128
"""Prompts that are handed in before the one that is read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt that was handed in: its handle, or why it was refused."""

    index: int
    handle: Handle[RequestOutput] | None
    error: JitneyError | None = None


def ask_all(llm: LLM, prompts: list[Prompt], params: SamplingParams) -> Iterator[Asked]:
    """Each prompt in order, being answered; leaving early cancels the rest."""
    line = _Line(llm, prompts, params)
    try:
        for index in range(len(prompts)):
            line.fill(index)
            yield line.asked.pop(index)
    finally:
        for left in line.asked.values():
            if left.handle is not None:
                left.handle.cancel()


class _Line:
    """Prompts in order: those that were handed in and not yet read, and the next ones."""

    def __init__(self, llm: LLM, prompts: list[Prompt], params: SamplingParams) -> None:
        self._llm = llm
        self._prompts = prompts
        self._params = params
        self.asked: dict[int, Asked] = {}
        asyncio.run(self._fill_together(min(AHEAD_MAX, len(prompts))))

    def fill(self, index: int) -> None:
        """See to it that this one is handed in, and those after it as far as there is room."""
        while index not in self.asked and not self._ask(index):
            self._wait_for_room()
        for following in range(index + 1, min(index + AHEAD_MAX, len(self._prompts))):
            if following not in self.asked and not self._ask(following):
                return

    async def _fill_together(self, count: int) -> None:
        await asyncio.gather(*(self._ask_async(index) for index in range(count)))

    async def _ask_async(self, index: int) -> None:
        try:
            handle = await self._llm.submit_async(self._prompts[index], self._params)
            self.asked[index] = Asked(index, handle)
        except QueueFull:
            # Not now: it is handed in when its turn comes.
            return
        except JitneyError as error:
            self.asked[index] = Asked(index, None, error)

    def _ask(self, index: int) -> bool:
        """Whether there was room. When nothing of ours is in the queue, no waiting would help."""
        has_live = bool(self._live())
        try:
            handle = self._llm.submit(self._prompts[index], self._params)
            self.asked[index] = Asked(index, handle)
        except QueueFull:
            if not has_live:
                raise
            return False
        except JitneyError as error:
            self.asked[index] = Asked(index, None, error)
        return True

    def _live(self) -> list[Handle[RequestOutput]]:
        return [
            each.handle
            for each in self.asked.values()
            if each.handle is not None and not each.handle.is_done
        ]

    def _wait_for_room(self) -> None:
        for handle in self._live()[:1]:
            try:
                handle.result()
            except JitneyError:
                # Whoever reads it is told.
                return
