"""Fits a `Cost` to measured ticks: least squares of relative errors, with no term below zero.

A curve is a sum of rises from knot to knot, which are linear terms. So one fit finds all curves and
all other terms together, and no curve falls. The curve of decodes may: kernels work on groups of
rows, and four can take less time than three. Its terms are its values at the knots. Ticks far from
the fit count less, because something else disturbed them. The knots are sizes that were measured.

How slots are computed together is not known. Each of `LAYOUTS` is fitted, and the nearest is taken.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from typing import Any  # Any: fields of a cost are of several types

import numpy as np
from numpy.typing import NDArray

from jitney.errors import SetupError
from jitney.records import TickRecord
from jitney_lab.plan.tick_cost import Cost, runs_of

Array = NDArray[np.float64]

DECODE_KNOTS = (*range(1, 33), 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Every small number of sequences: some backends compute them in groups, so that time has steps."""

CONTEXT_KNOTS = (256, 1024, 2048)
SPAN_KNOTS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048)
NEAR = 0.1
"""Ticks this far from the fit, as a share, count fully; those beyond it less and less."""

FAR = 0.3
"""A tick this far from the fit may be disturbed, and says no more about it if it is farther."""

ROUNDS = 8
LAYOUTS: tuple[tuple[int, int | None], ...] = ((1, None), (1, 2), (4, 2))
"""Groups and gaps of slots, as `runs_of` takes them; the simplest first. llama.cpp has a gap of 2
where slots have memory of their own."""

APART = 1.3
TICKS_LEAST = 2
RISING = ("spans_alone", "spans_beside", "contexts")
"""The curves that do not fall, in the order of their terms."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What is in a batch, as far as its time depends on it."""

    contexts: tuple[int, ...] = ()
    """Tokens that each generating sequence looks back at."""
    prompts: int = 0
    firsts: int = 0
    """Prompts that get their first token."""
    span_tokens: int = 0
    pairs: float = 0.0
    """Tokens that the tokens of prompts look back at."""
    slots: tuple[int, ...] = ()
    """Of each generating sequence; empty: the first ones."""

    @property
    def decodes(self) -> int:
        """Sequences that generate."""
        return len(self.contexts)

    def runs(self, layout: tuple[int, int | None]) -> list[int]:
        """The rows of the generating sequences, run by run."""
        return runs_of(self.slots or range(self.decodes), *layout)


@dataclass(frozen=True, slots=True)
class MeasuredTick:
    """A shape, the seconds of its pass, and the seconds from there to the next pass."""

    shape: BatchShape
    pass_s: float
    host_s: float | None = None
    """None if the engine had nothing to do then."""


def measured(ticks: Sequence[TickRecord]) -> list[MeasuredTick]:
    """The ticks of one run, in their order."""
    found = []
    for tick, after in zip(ticks, [*ticks[1:], None], strict=True):
        host_s = None
        if after is not None and (tick.active_slots or tick.queue_depth):
            host_s = max(0.0, after.at - after.tick_ms / 1e3 - tick.at)
        if len(tick.members) == tick.batch_size:
            found.append(MeasuredTick(shape_of(tick), tick.tick_ms / 1e3, host_s))
    return found


def shape_of(tick: TickRecord) -> BatchShape:
    """The shape of the batch of a tick."""
    decodes = [each for each in tick.members if each.length == 1 and each.samples]
    prompts = [each for each in tick.members if each.length != 1 or not each.samples]
    return BatchShape(
        contexts=tuple(each.start for each in decodes),
        prompts=len(prompts),
        firsts=sum(each.samples for each in prompts),
        span_tokens=sum(each.length for each in prompts),
        pairs=sum(each.length * (each.start + each.length / 2) for each in prompts),
        slots=tuple(each.slot for each in decodes),
    )


def fit_cost(ticks: Sequence[MeasuredTick], **measured_on: Any) -> Cost:
    """The cost that is nearest to these ticks. Raises SetupError without ticks of every kind.

    `measured_on` are the fields of a `Cost` that say what it was measured with.
    """
    found = [_fit(ticks, measured_on, layout) for layout in LAYOUTS]
    return min(found, key=lambda each: each[1])[0]


def _fit(
    ticks: Sequence[MeasuredTick], measured_on: dict[str, Any], layout: tuple[int, int | None]
) -> tuple[Cost, float]:
    """The cost with this layout, and its mean error, in which no tick counts for much."""
    shapes = [tick.shape for tick in ticks]
    decoding = [rows for shape in shapes for rows in shape.runs(layout)]
    alone = [each.span_tokens for each in shapes if each.prompts and not each.decodes]
    beside = [each.span_tokens for each in shapes if each.prompts and each.decodes]
    if not decoding or not alone or not beside:
        raise SetupError("The measured ticks are too few to fit a cost; measure again.")
    knots = {
        "decodes": _exact_knots(decoding, DECODE_KNOTS),
        "spans_alone": _knots(alone, SPAN_KNOTS),
        "spans_beside": _knots(beside, SPAN_KNOTS),
        "contexts": _knots([each for shape in shapes for each in shape.contexts], CONTEXT_KNOTS),
    }
    rows = np.array([_row(shape, layout, knots) for shape in shapes])
    seconds = np.array([tick.pass_s for tick in ticks])
    found = _solve(rows, seconds)
    terms = iter(found.tolist())
    values = {name: list(islice(terms, len(sizes))) for name, sizes in knots.items()}
    for name in RISING:
        values[name] = list(accumulate(values[name]))
    prompt_s, first_s, prompt_context_s = terms
    host_s, host_sequence_s = _fit_host(ticks)
    errors = np.abs(rows @ found - seconds) / seconds
    curves = {name: tuple(zip(knots[name], values[name], strict=True)) for name in knots}
    cost = Cost(
        **(measured_on | curves),
        prompt_s=prompt_s,
        first_s=first_s,
        prompt_context_s=prompt_context_s,
        host_s=host_s,
        host_sequence_s=host_sequence_s,
        error=float(np.mean(errors)),
        tick_count=len(ticks),
        group=layout[0],
        gap=layout[1],
    )
    return cost, float(np.mean(np.minimum(errors, FAR)))


def _exact_knots(sizes: Sequence[int], offered: Sequence[int]) -> tuple[int, ...]:
    """The offered sizes that were measured more than once: times may rise in steps."""
    counts = Counter(sizes)
    often = {each for each in offered if counts[each] >= TICKS_LEAST}
    return tuple(sorted({min(sizes), *often, max(sizes)}))


def _knots(sizes: Sequence[int], offered: Sequence[int]) -> tuple[int, ...]:
    """The smallest and the largest size, and the offered ones between that have a size near."""
    lowest, highest = min(sizes), max(sizes)
    inner = [
        each
        for each in offered
        # Two knots close together would share too few ticks.
        if APART * lowest <= each <= highest / APART
        and any(each / APART <= size <= each * APART for size in sizes)
    ]
    return tuple(sorted({lowest, *inner, highest}))


def _row(
    shape: BatchShape, layout: tuple[int, int | None], knots: dict[str, tuple[int, ...]]
) -> list[float]:
    """How much of each term a tick has."""
    decodes = np.zeros(len(knots["decodes"]))
    for rows in shape.runs(layout):
        decodes += _parts(rows, knots["decodes"])
    contexts = np.zeros(len(knots["contexts"]))
    for context in shape.contexts:
        contexts += _rises(context, knots["contexts"])
    # The shortest context is part of the time of a decode.
    contexts[0] = 0.0
    spans = [shape.span_tokens, 0] if shape.decodes == 0 else [0, shape.span_tokens]
    return [
        *decodes,
        *_rises(spans[0], knots["spans_alone"]),
        *_rises(spans[1], knots["spans_beside"]),
        *contexts,
        *(shape.prompts, shape.firsts, shape.pairs),
    ]


@lru_cache(maxsize=4096)
def _parts(size: int, knots: tuple[int, ...]) -> Array:
    """How much of the value at each knot this size has: straight between the two beside it."""
    return np.array([np.interp(size, knots, each) for each in np.eye(len(knots))])


def _rises(size: int, knots: tuple[int, ...]) -> list[float]:
    """How much of the first value, and of each rise from knot to knot, this size has.

    As no rise is below zero, more never takes less time. All are 0 for nothing.
    """
    if size == 0:
        return [0.0] * len(knots)
    parts = [(size - low) / (high - low) for low, high in pairwise(knots)]
    return [1.0, *(min(1.0, max(0.0, part)) for part in parts)]


def _solve(rows: Array, seconds: Array) -> Array:
    """Terms of at least zero; ticks far from the fit count less in each next round."""
    weights = 1.0 / seconds
    found = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        found = _nonnegative(rows * weights[:, None], seconds * weights)
        distance = np.abs(rows @ found - seconds) / seconds
        weights = np.sqrt(np.minimum(1.0, NEAR / np.maximum(distance, 1e-12))) / seconds
    return found


def _nonnegative(rows: Array, values: Array) -> Array:
    """Least squares; terms that come out below zero are left out, the lowest first."""
    scale = np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    used = [at for at in range(rows.shape[1]) if np.any(rows[:, at])]
    found = np.zeros(rows.shape[1])
    while used:
        part = np.linalg.lstsq(rows[:, used] / scale[used], values, rcond=None)[0]
        lowest = int(np.argmin(part))
        if part[lowest] >= -1e-12:
            found[used] = np.maximum(0.0, part / scale[used])
            break
        del used[lowest]
    return found


def _fit_host(ticks: Sequence[MeasuredTick]) -> tuple[float, float]:
    """A line through the times between passes, by the sequences of the first."""
    known = [(each.shape, each.host_s) for each in ticks if each.host_s is not None]
    if not known:
        return 0.0, 0.0
    sizes = np.array([float(shape.decodes + shape.prompts) for shape, _ in known])
    seconds = np.array([seconds for _, seconds in known])
    # Medians by size: a pause for something else must not count.
    groups = sorted({float(size) for size in sizes})
    middles = np.array([np.median(seconds[sizes == size]) for size in groups])
    counts = np.sqrt(np.array([float(np.sum(sizes == size)) for size in groups]))
    rows = np.array([[1.0, size] for size in groups])
    found = _nonnegative(rows * counts[:, None], middles * counts)
    return float(found[0]), float(found[1])
