"""Plans the passes in which llama.cpp computes a batch, where each slot has its own cells. Pure.

Each pass is one `llama_decode` with rows of one kind: a piece of a prompt, or one token for each of
many sequences. The library chooses kernels by the number of rows. A `PassShape` says for how many
rows all tokens are computed alike, and a pass is filled up to that number (invariant 4). The extra
rows are tokens of the prompt before the piece, computed again with the same result, or fillers
that are removed afterwards. This module does not load the library.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from jitney.backends.llamacpp.attention import PassShape
from jitney.backends.shared.slots import EntryRows, rows_missing

FILLER = 0
"""Any token works: its logits are not used."""

GAP_MAX = 2
"""The library computes neighbouring slots in one pass and starts another one at each gap. A gap of
up to this many slots is filled: a row costs about a third of a pass."""


@dataclass(slots=True)
class Pass:
    """The input of one `llama_decode`, row by row."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    """Rows whose logits are computed."""
    result_rows: list[tuple[int, int]] = field(default_factory=list)
    """Pairs: an index into `logit_rows`, and its row in the batch's logits."""
    cut_after: list[tuple[int, int]] = field(default_factory=list)
    """Truncations after the pass: a slot, and how many tokens it keeps."""
    cut_before: tuple[int, int] | None = None
    """The same before the pass, for tokens that are computed again."""

    def add(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Add rows of one slot, from a position on."""
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.slots += [slot] * len(tokens)


def plan_passes(
    spans: Sequence[EntryRows], held: Callable[[int], int], slot_tokens_max: int, shape: PassShape
) -> Iterator[Pass]:
    """The passes of a batch, in order; `held` says how many tokens a slot holds.

    Prompts come first: the logits of the last pass are not copied, and decodes have the most.
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
    """The whole batch in one pass, for slots that share one pool."""
    one_pass = Pass()
    for span in spans:
        one_pass.add(span.entry.slot, span.entry.start, span.tokens)
        one_pass.logit_rows += range(len(one_pass.tokens) - len(span.rows), len(one_pass.tokens))
    one_pass.result_rows = [(row, row) for row in range(len(one_pass.logit_rows))]
    return one_pass


def _is_decode(span: EntryRows, shape: PassShape) -> bool:
    if len(span.tokens) > 1:
        return False
    is_prompt = span.entry.start < span.contents.prompt_count
    return not (shape.decodes_differ and is_prompt)


def _prompt_passes(span: EntryRows, shape: PassShape) -> Iterator[Pass]:
    """The pieces of a span. Its last tokens have rows in the batch's logits."""
    count = len(span.tokens)
    without = count - len(span.rows)
    # Equal pieces: a small last piece would cost nearly as much as a large one.
    pieces = -(-count // shape.span_rows_max)
    for at, end in pairwise(count * piece // pieces for piece in range(pieces + 1)):
        rows = span.rows[max(at - without, 0) : max(end - without, 0)]
        yield _piece(span, at, end, rows, shape)


def _piece(span: EntryRows, at: int, end: int, rows: range, shape: PassShape) -> Pass:
    """The tokens `at` to `end` of a span, filled up. The last tokens have these rows."""
    slot, start, count = span.entry.slot, span.entry.start + at, end - at
    size = max(count + rows_missing(count, shape.rows_group), shape.span_rows_min)
    repeated = min(size - count, start)
    tokens = [*_before(span, at, repeated), *span.tokens[at:end]]
    one_pass = Pass(cut_before=(slot, start - repeated) if repeated else None)
    one_pass.add(slot, start - repeated, [*tokens, *[FILLER] * (size - len(tokens))])
    if len(tokens) < size:
        one_pass.cut_after.append((slot, start + count))
    if rows:
        row_count = len(rows) + rows_missing(len(rows), shape.rows_group)
        first = max(0, len(tokens) - row_count)
        one_pass.logit_rows = list(range(first, first + row_count))
        offset = len(tokens) - len(rows) - first
        one_pass.result_rows = [(offset + each, row) for each, row in enumerate(rows)]
    return one_pass


def _before(span: EntryRows, at: int, count: int) -> list[int]:
    """The last `count` tokens before the place `at` of a span."""
    missing = max(0, count - at)
    held = span.contents.tokens
    return [*held[len(held) - missing :], *span.tokens[at - (count - missing) : at]]


def _decode_pass(spans: Sequence[EntryRows], held: Mapping[int, int]) -> Pass:
    """One token for each span, and a filler for each other slot in `held` (slot: its length)."""
    by_slot = {span.entry.slot: span for span in spans}
    one_pass = Pass()
    for slot, length in held.items():
        span = by_slot.get(slot)
        if span is None:
            one_pass.add(slot, length, [FILLER])
            one_pass.cut_after.append((slot, length))
        else:
            one_pass.add(slot, span.entry.start, span.tokens)
            one_pass.result_rows += [(len(one_pass.tokens) - 1, row) for row in span.rows]
    if one_pass.result_rows:
        one_pass.logit_rows = list(range(len(one_pass.tokens)))
    return one_pass


def _filled(
    spans: Sequence[EntryRows], held: Callable[[int], int], slot_tokens_max: int, shape: PassShape
) -> list[int]:
    """The slots of these spans, of their whole groups, and of small gaps between."""
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
