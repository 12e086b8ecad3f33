"""Submits several prompts at once and shows them live, side by side, with the engine's state.

One event loop in the main thread reads all handles and paints; the engine has its own thread. If
the output is not a terminal, nothing is painted, and the answers are returned.

Tests: tests/unit/cli/test_board.py and tests/e2e/test_cli_terminal.py.
"""

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field

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
class Watched:
    """A prompt with its title for people, its answer so far, and how it ended."""

    title: str
    prompt: Prompt
    params: SamplingParams
    wait_s: float = 0.0
    """How long after the start it is submitted."""
    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    outcome: RequestOutput | JitneyError | None = None

    @property
    def pane(self) -> Pane:
        """Its pane on the board."""
        text, state = "".join(self.texts), PaneState.RUNNING
        if isinstance(self.outcome, JitneyError):
            text, state = sentence_of(self.outcome), PaneState.FAILED
        elif self.outcome is not None:
            state = PaneState.DONE
        elif not self.texts:
            state = PaneState.WAITING
        return Pane(printable(self.title), printable(text), state, self.tokens)


class Meter:
    """Measures an engine's speed: `take` on the engine thread, `status` on the main thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = SystemClock()
        self._started_at = self._clock.now()
        self._lock = threading.Lock()
        self._ticks: deque[TickRecord] = deque()
        """The ticks of the last second, and at least one."""
        self._tokens_before = engine.totals().completion_tokens

    def take(self, record: Record) -> None:
        """Observe the engine: keep each tick."""
        if not isinstance(record, TickRecord):
            return
        with self._lock:
            self._ticks.append(record)
            while self._ticks[0].at < record.at - WINDOW_S:
                self._ticks.popleft()

    def status(self) -> Status:
        """The state of the engine now."""
        now = self._clock.now()
        with self._lock:
            ticks = list(self._ticks)
        elapsed_s = now - self._started_at
        recent = sum(each.sampled_tokens for each in ticks if each.at > now - WINDOW_S)
        tokens = self._engine.totals().completion_tokens - self._tokens_before
        return Status(
            slots_max=self._engine.backend.traits.slots_max,
            snapshot=self._engine.snapshot(),
            decode_tokens=ticks[-1].decode_tokens if ticks else 0,
            prefill_tokens=ticks[-1].prefill_tokens if ticks else 0,
            rate_now=rate(recent, min(WINDOW_S, elapsed_s)),
            rate_mean=rate(tokens, elapsed_s),
            elapsed_s=elapsed_s,
        )


def watch(llm: LLM, watched: list[Watched], console: Console, *, leaves: bool) -> None:
    """Submit all prompts. With `leaves`, the board stays on the terminal at the end."""
    meter = Meter(llm.engine)
    llm.engine.observe(meter.take)
    try:
        asyncio.run(_watch(llm, watched, meter, console, leaves))
    finally:
        llm.engine.unobserve(meter.take)


async def _watch(
    llm: LLM, watched: list[Watched], meter: Meter, console: Console, leaves: bool
) -> None:
    # Ctrl-C leaves the group early; that cancels the readers, and they cancel their requests.
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
    # The last row is for the cursor: a board of full height would scroll.
    size = console.size
    panes = [each.pane for each in watched]
    live.update(draw(panes, meter.status(), size.width, size.height - 1), refresh=True)


async def _follow(llm: LLM, watched: Watched) -> None:
    await asyncio.sleep(watched.wait_s)
    try:
        async with await llm.submit_async(watched.prompt, watched.params) as handle:
            async for delta in handle:
                watched.texts.append(delta.text)
                watched.tokens += len(delta.tokens)
            watched.outcome = await handle.result_async()
    except JitneyError as error:
        watched.outcome = error
