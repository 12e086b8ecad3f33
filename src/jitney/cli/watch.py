"""Submits several prompts at once and shows them live, side by side, with the engine's state.

One event loop in the main thread reads all handles and paints; the engine has its own thread. If
the output is not a terminal, nothing is painted, and the answers are returned.

Tests: tests/unit/cli/test_board.py and tests/e2e/test_cli_terminal.py.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.api.prompts import Prompt
from jitney.cli.board import Pane, PaneState, Status, draw
from jitney.cli.failures import sentence_of
from jitney.core.params import SamplingParams
from jitney.engine.clock import SystemClock
from jitney.engine.engine import Engine
from jitney.engine.stats import rate
from jitney.errors import JitneyError
from jitney.records import Record, TickRecord
from jitney.text.printable import printable

FRAMES_PER_S = 10
WINDOW_S = 1.0
"""The speed 'now' is that of this many seconds."""


@dataclass(slots=True)
class LivePrompt:
    """A prompt, its pane on the board, and how it ended."""

    pane: Pane
    prompt: Prompt
    params: SamplingParams
    wait_s: float = 0.0
    """How long after the start it is submitted."""
    outcome: RequestOutput | JitneyError | None = None


class Meter:
    """Measures an engine's speed: `take` on the engine thread, `status` on the main thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = SystemClock()
        self._tick: TickRecord | None = None
        started = (self._clock.now(), engine.totals().completion_tokens)
        self._marks = deque([started])
        """Moments of the last second and one before, with the tokens that were made until then."""
        self._started_at, self._tokens_before = started

    def take(self, record: Record) -> None:
        """Observe the engine: keep the last tick."""
        if isinstance(record, TickRecord):
            self._tick = record

    def status(self) -> Status:
        """The state of the engine now."""
        now, tokens = self._clock.now(), self._engine.totals().completion_tokens
        self._marks.append((now, tokens))
        # One older mark stays, so that the window is whole.
        while self._marks[1][0] < now - WINDOW_S:
            self._marks.popleft()
        window_at, window_tokens = self._marks[0]
        tick, elapsed_s = self._tick, now - self._started_at
        return Status(
            slots_max=self._engine.backend.traits.slots_max,
            snapshot=self._engine.snapshot(),
            decode_tokens=0 if tick is None else tick.decode_tokens,
            prefill_tokens=0 if tick is None else tick.prefill_tokens,
            rate_now=rate(tokens - window_tokens, now - window_at),
            rate_mean=rate(tokens - self._tokens_before, elapsed_s),
            elapsed_s=elapsed_s,
        )


def watch(llm: LLM, prompts: list[LivePrompt], console: Console, *, leaves: bool) -> None:
    """Submit all prompts. With `leaves`, the board stays on the terminal at the end."""
    meter = Meter(llm.engine)
    llm.engine.observe(meter.take)
    try:
        asyncio.run(_watch(llm, prompts, meter, console, leaves))
    finally:
        llm.engine.unobserve(meter.take)


async def _watch(
    llm: LLM, prompts: list[LivePrompt], meter: Meter, console: Console, leaves: bool
) -> None:
    # Ctrl-C leaves the group early; that cancels the readers, and they cancel their requests.
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(_follow(llm, each)) for each in prompts]
        if not console.is_terminal:
            return
        with Live(console=console, auto_refresh=False, transient=not leaves) as live:
            while not all(reader.done() for reader in readers):
                _paint(live, console, prompts, meter)
                await asyncio.wait(readers, timeout=1 / FRAMES_PER_S)
            _paint(live, console, prompts, meter)


def _paint(live: Live, console: Console, prompts: list[LivePrompt], meter: Meter) -> None:
    # The last row is for the cursor: a board of full height would scroll.
    size = console.size
    panes = [each.pane for each in prompts]
    live.update(draw(panes, meter.status(), size.width, size.height - 1), refresh=True)


async def _follow(llm: LLM, live: LivePrompt) -> None:
    pane = live.pane
    await asyncio.sleep(live.wait_s)
    try:
        async with await llm.submit_async(live.prompt, live.params) as handle:
            async for delta in handle:
                pane.text += printable(delta.text)
                pane.tokens += len(delta.tokens)
                pane.state = PaneState.RUNNING
            live.outcome = await handle.result_async()
            pane.state = PaneState.DONE
    except JitneyError as error:
        live.outcome = error
        pane.text, pane.state = printable(sentence_of(error)), PaneState.FAILED
