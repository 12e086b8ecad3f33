"""Draws eight requests in the scheduler, tick by tick, as SVG, for docs/continuous_batching.md.

Usage, from the root of the repository:
.venv/bin/python -m scripts.draw_ticks docs/images/ticks.svg

The scheduler is the real one. Instead of a backend, every token is the number 5, and a tick takes
10 ms. Memory is short on purpose, so that one request is preempted.
"""

import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from jitney.core.backend import Traits
from jitney.core.batch import Outcome, Sample
from jitney.core.events import FinishEvent, PreemptEvent
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.scheduler_settings import Mix, SchedulerSettings

SLOTS, KV_TOKENS, BLOCK, BUDGET, CHUNK = 4, 60, 4, 16, 12
ARRIVALS = (
    ("A", 0, 6, 14),
    ("B", 0, 4, 5),
    ("C", 1, 20, 6),
    ("D", 2, 8, 12),
    ("E", 3, 16, 8),
    ("F", 5, 10, 6),
    ("G", 7, 5, 9),
    ("H", 8, 12, 3),
)
"""Name, tick of arrival, tokens of the prompt, tokens of the answer."""

CELL, ROW, LEFT, TOP = 27, 34, 118, 46
COLOURS = {"prefill": "#4c78a8", "decode": "#f2a65a", "waiting": "#e8e8e8", "preempted": "#d9534f"}


@dataclass
class Trace:
    """What happened to each request in each tick."""

    cells: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """The kind of a cell, and the tokens that were computed in it."""
    totals: list[int] = field(default_factory=list)
    """Tokens of each forward pass."""
    ended: dict[str, int] = field(default_factory=dict)


def simulate() -> Trace:
    """Run the requests to their ends."""
    traits = Traits(
        name="drawn",
        slots_max=SLOTS,
        kv_tokens=KV_TOKENS,
        block_tokens=BLOCK,
        model_len_max=40,
        batch_invariant=True,
        can_save=False,
    )
    settings = SchedulerSettings(
        model_len_max=40,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=BUDGET,
        prefill_chunk=CHUNK,
        mix=Mix.DECODE_FIRST,
    )
    scheduler, trace = Scheduler(settings, traits, ()), Trace()
    while len(trace.ended) < len(ARRIVALS):
        tick = len(trace.totals)
        for name, at, prompt_count, tokens_max in ARRIVALS:
            if at == tick:
                # Prompts differ from their first token on, so that none is the prefix of another.
                prompt = (100 + ord(name), *range(prompt_count - 1))
                params = SamplingParams(temperature=0.0, max_tokens=tokens_max)
                request = Request(id=RequestId(name), prompt=prompt, params=params, seed=0)
                scheduler.submit(request, tick / 100)
        _run_tick(scheduler, trace, tick)
    return trace


def _run_tick(scheduler: Scheduler, trace: Trace, tick: int) -> None:
    planned = scheduler.plan(tick / 100)
    for name, at, _, _ in ARRIVALS:
        if at <= tick and name not in trace.ended:
            trace.cells[name, tick] = ("waiting", 0)
    assert planned is not None, "somebody runs until the last has ended"
    trace.totals.append(planned.batch.token_count)
    for sequence, entry in zip(planned.sequences, planned.batch.entries, strict=True):
        kind = "decode" if entry.length == 1 and sequence.completion_count else "prefill"
        trace.cells[sequence.request.id, tick] = (kind, entry.length)
    for event in scheduler.apply(planned, _outcome(planned), (tick + 1) / 100):
        if isinstance(event, PreemptEvent):
            trace.cells[event.request_id, tick] = ("preempted", 0)
        elif isinstance(event, FinishEvent):
            trace.ended[event.request_id] = tick


def _outcome(planned: PlannedBatch) -> Outcome:
    entries = planned.batch.entries
    samples = tuple(Sample(5 if entry.wants_token else None) for entry in entries)
    return Outcome.of(planned.batch.number, samples, 0.01)


def draw(trace: Trace) -> str:
    """The picture: a row for each request, a column for each tick."""
    ticks, rows = len(trace.totals), len(ARRIVALS)
    width, height = LEFT + ticks * CELL + 20, TOP + (rows + 1) * ROW + 52
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    legend = zip(("prefill", "decode", "waits", "preempted"), COLOURS.values(), strict=True)
    for place, (name, colour) in enumerate(legend):
        parts.append(_box(LEFT + place * 110, 10, 14, colour))
        parts.append(_text(LEFT + place * 110 + 20, 21, name))
    for row, (name, _, prompt_count, tokens_max) in enumerate(ARRIVALS):
        y = TOP + row * ROW
        parts.append(_text(8, y + 18, f"{name}   {prompt_count} + {tokens_max}"))
        for tick in range(ticks):
            kind, count = trace.cells.get((name, tick), ("", 0))
            if kind:
                parts.append(_box(LEFT + tick * CELL, y, CELL - 3, COLOURS[kind]))
            if count:
                parts.append(_text(LEFT + tick * CELL + 12, y + 17, str(count), "middle"))
    y = TOP + rows * ROW
    parts.append(_text(8, y + 18, "tokens of the pass"))
    for tick, total in enumerate(trace.totals):
        parts.append(_text(LEFT + tick * CELL + 12, y + 18, str(total), "middle"))
        parts.append(_text(LEFT + tick * CELL + 12, y + 44, str(tick), "middle"))
    parts.append(_text(8, y + 44, "tick"))
    return "\n".join([*parts, "</svg>", ""])


def _box(x: int, y: int, size: int, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="3" fill="{colour}"/>'


def _text(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(simulate()), encoding="utf-8")
