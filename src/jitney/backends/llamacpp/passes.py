"""The passes in which llama.cpp computes a batch, where each slot has cells of its own. Pure.

Each pass is one `llama_decode` whose rows are of one kind: a piece of a prompt, or one token for
each of many sequences. Kernels are chosen by the number of rows, so a `Shape` says how many are
computed alike, and a pass is filled up to that: with tokens of the prompt before the piece, which
come out as they were, or with tokens that are taken back afterwards (invariant 4).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from jitney.backends.llamacpp.shape import Shape
from jitney.backends.shared.layout import EntryRows
from jitney.backends.shared.shapes import rows_missing

FILLER = 0
"""Any token will do where nobody looks at what comes out."""

GAP_MAX = 2
"""The library computes neighbouring slots in one pass and starts another one at each gap. A gap of
up to this many slots is filled: a row costs about a third of what another pass does."""


@dataclass(slots=True)
class Pass:
    """What one `llama_decode` is fed, row by row."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    """Rows whose logits are computed."""
    kept: list[tuple[int, int]] = field(default_factory=list)
    """Which of the wanted ones is which row of the answer."""
    taken_back: list[tuple[int, int]] = field(default_factory=list)
    """What is cut off afterwards: a slot, and the tokens that it keeps."""
    cut_first: tuple[int, int] | None = None
    """What is cut off before, to be computed once more."""

    def add(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Rows of one slot, from a position on."""
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.slots += [slot] * len(tokens)


def plan_passes(
    spans: Sequence[EntryRows], held: Callable[[int], int], slot_tokens_max: int, shape: Shape
) -> Iterator[Pass]:
    """The passes of a batch, one after the other; `held` says how many tokens a slot holds.

    Prompts come first: the logits of the last pass need not be copied, and decodes have most.
    """
    decodes = []
    ends: dict[int, int] = {}
    for span in spans:
        if _is_decode(span, shape):
            decodes.append(span)
        else:
            ends[span.entry.slot] = span.entry.end
            yield from _prompt_passes(span, shape)
    if decodes:

        def held_now(slot: int) -> int:
            return ends.get(slot) or held(slot)

        slots = _filled(decodes, held_now, slot_tokens_max, shape)
        yield _decode_pass(decodes, {slot: held_now(slot) for slot in slots})


def whole_pass(spans: Sequence[EntryRows]) -> Pass:
    """All of a batch as it is: what is done where all slots share one pool."""
    made = Pass()
    for span in spans:
        made.add(span.entry.slot, span.entry.start, span.tokens)
        made.wanted += range(len(made.tokens) - len(span.rows), len(made.tokens))
    made.kept = [(row, row) for row in range(len(made.wanted))]
    return made


def _is_decode(span: EntryRows, shape: Shape) -> bool:
    if len(span.tokens) > 1:
        return False
    is_prompt = span.entry.start < span.contents.prompt_count
    return not (shape.decodes_differ and is_prompt)


def _prompt_passes(span: EntryRows, shape: Shape) -> Iterator[Pass]:
    """The pieces of a span, whose last tokens have rows in the answer."""
    count = len(span.tokens)
    without = count - len(span.rows)
    # Equal pieces: a small rest would cost nearly as much as a large one.
    pieces = -(-count // shape.span_rows_max)
    for at, end in pairwise(count * piece // pieces for piece in range(pieces + 1)):
        rows = span.rows[max(at - without, 0) : max(end - without, 0)]
        yield _piece(span, at, end, rows, shape)


def _piece(span: EntryRows, at: int, end: int, rows: range, shape: Shape) -> Pass:
    """The tokens `at` to `end` of a span, filled up; the last of them are these rows."""
    slot, start, count = span.entry.slot, span.entry.start + at, end - at
    size = max(count + rows_missing(count, shape.rows_group), shape.span_rows_min)
    along = min(size - count, start)
    tokens = [*_before(span, at, along), *span.tokens[at:end]]
    made = Pass(cut_first=(slot, start - along) if along else None)
    made.add(slot, start - along, [*tokens, *[FILLER] * (size - len(tokens))])
    if len(tokens) < size:
        made.taken_back.append((slot, start + count))
    if rows:
        wanted = len(rows) + rows_missing(len(rows), shape.rows_group)
        first = max(0, len(tokens) - wanted)
        made.wanted = list(range(first, first + wanted))
        offset = len(tokens) - len(rows) - first
        made.kept = [(offset + each, row) for each, row in enumerate(rows)]
    return made


def _before(span: EntryRows, at: int, count: int) -> list[int]:
    """The last tokens, so many of them, before that place of a span."""
    missing = max(0, count - at)
    held = span.contents.tokens
    return [*held[len(held) - missing :], *span.tokens[at - (count - missing) : at]]


def _decode_pass(spans: Sequence[EntryRows], held: Mapping[int, int]) -> Pass:
    """One token for each span, and one to be taken back for each other slot, by what it holds."""
    by_slot = {span.entry.slot: span for span in spans}
    made = Pass()
    for slot, length in held.items():
        span = by_slot.get(slot)
        if span is None:
            made.add(slot, length, [FILLER])
            made.taken_back.append((slot, length))
        else:
            made.add(slot, span.entry.start, span.tokens)
            made.kept += [(len(made.tokens) - 1, row) for row in span.rows]
    if made.kept:
        made.wanted = list(range(len(made.tokens)))
    return made


def _filled(
    spans: Sequence[EntryRows], held: Callable[[int], int], slot_tokens_max: int, shape: Shape
) -> list[int]:
    """The slots of these spans, of the groups that they stand in, and of small gaps between."""
    group = shape.rows_group
    groups = sorted({span.entry.slot // group for span in spans})
    slots = [each * group + at for each in groups for at in range(group)]
    for slot, after in pairwise(slots.copy()):
        gap = range(slot + 1, after)
        if len(gap) <= GAP_MAX and all(held(each) < slot_tokens_max for each in gap):
            slots += gap
    if shape.lone_tokens_max:
        taken = set(slots)
        lone = [slot for slot in slots if not {slot - 1, slot + 1} & taken]
        slots += [slot ^ 1 for slot in lone if held(slot) >= shape.lone_tokens_max]
    return sorted(slots)
