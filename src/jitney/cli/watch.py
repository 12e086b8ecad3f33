"""Asks several prompts at once and shows them live, side by side.

One event loop in the main thread reads all handles and paints; the engine has its own thread.
When the output is no terminal nothing is painted, and the answers come back all the same.
"""

import asyncio
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.api.prompts import Prompt
from jitney.cli.board import Pane, PaneState, draw
from jitney.cli.failures import sentence_of
from jitney.cli.meter import Meter
from jitney.cli.terminal import printable
from jitney.core.params import SamplingParams
from jitney.errors import JitneyError

FRAMES_PER_S = 10


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, its title for people, and how to answer it."""

    title: str
    prompt: Prompt
    params: SamplingParams
    wait_s: float = 0.0
    """How long after the others it comes."""


@dataclass(slots=True)
class Watched:
    """A question while it is answered, and how it ended."""

    question: Question
    state: PaneState = PaneState.WAITING
    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    answer: RequestOutput | None = None
    error: JitneyError | None = None

    @property
    def pane(self) -> Pane:
        """What is to be seen of it."""
        text = sentence_of(self.error) if self.error is not None else "".join(self.texts)
        return Pane(printable(self.question.title), printable(text), self.state, self.tokens)


def watch(
    llm: LLM, questions: list[Question], meter: Meter, console: Console, *, leaves: bool
) -> list[Watched]:
    """Ask them all; the picture stays on the terminal in the end when `leaves`."""
    watched = [Watched(question) for question in questions]
    llm.engine.observe(meter.take)
    try:
        asyncio.run(_watch(llm, watched, meter, console, leaves))
    finally:
        llm.engine.unobserve(meter.take)
    return watched


async def _watch(
    llm: LLM, watched: list[Watched], meter: Meter, console: Console, leaves: bool
) -> None:
    # Leaving the group early, by Ctrl-C, cancels the readers, and those their requests.
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(_follow(llm, each)) for each in watched]
        if not console.is_terminal:
            return
        with Live(console=console, auto_refresh=False, transient=not leaves) as live:
            while not all(reader.done() for reader in readers):
                _paint(live, console, watched, meter)
                await asyncio.wait(readers, timeout=1 / FRAMES_PER_S)
            _paint(live, console, watched, meter)


def _paint(live: Live, console: Console, watched: list[Watched], meter: Meter) -> None:
    # The last row is left to the cursor: a picture of full height would scroll.
    size = console.size
    panes = [each.pane for each in watched]
    live.update(draw(panes, meter.status(), size.width, size.height - 1), refresh=True)


async def _follow(llm: LLM, watched: Watched) -> None:
    question = watched.question
    await asyncio.sleep(question.wait_s)
    try:
        async with await llm.submit_async(question.prompt, question.params) as handle:
            async for delta in handle:
                watched.state = PaneState.RUNNING
                watched.texts.append(delta.text)
                watched.tokens += len(delta.tokens)
            watched.answer = await handle.result_async()
        watched.state = PaneState.DONE
    except JitneyError as error:
        watched.error = error
        watched.state = PaneState.FAILED
