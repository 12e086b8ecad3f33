"""Entries as the backend feeds them: checked tokens, rows of the logits, prompt logprobs.

Called by backends on the engine thread: `lay_out` before the forward pass, `sample_spans` after
it. Between two spans of a prompt whose logprobs are wanted, its slot keeps the one row that the
second one needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitney.backends.shared.slots import LastRow, SlotContents, SlotMemory
from jitney.core.batch import Batch, Entry, Sample, TokenLogprob
from jitney.errors import BackendFailed
from jitney.sampling.logprobs import prompt_logprobs
from jitney.sampling.sampler import RowWanted, sample_rows

Rows = npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]
"""Rows of logits, in one piece or one by one."""


@dataclass(frozen=True, slots=True)
class Span:
    """An entry as it was fed: its slot's state, and which rows of the logits are its own."""

    index: int
    """Its place among the entries of the batch."""
    entry: Entry
    state: SlotContents
    tokens: tuple[int, ...]
    rows: range
    """Rows in the order of positions; they end with the span's last position."""
    scored: range
    """Positions of prompt tokens whose logprobs are wanted."""


def lay_out(batch: Batch, memory: SlotMemory, tokens_max: int, *, by_slot: bool) -> list[Span]:
    """The entries, checked against what their slots hold; in the order of slots if `by_slot`.

    Rows of the logits are numbered in the order of the answer.
    """
    if batch.token_count > tokens_max:
        raise BackendFailed(
            f"batch {batch.number} has {batch.token_count} tokens; the limit is {tokens_max}."
        )
    entries = batch.entries
    if len({entry.slot for entry in entries}) < len(entries):
        raise BackendFailed(f"a slot stands twice in batch {batch.number}.")
    order: Sequence[int] = range(len(entries))
    if by_slot:
        order = sorted(order, key=lambda each: entries[each].slot)
    spans: list[Span] = []
    row = 0
    for index in order:
        entry = entries[index]
        state = memory.state(entry.slot)
        tokens = _tokens_of(entry, state)
        scored = _scored_positions(entry, state)
        # The last row of a span is wanted for its token, or for the next span's first one.
        rows = entry.length if scored else int(entry.wants_token)
        spans.append(Span(index, entry, state, tokens, range(row, row + rows), scored))
        row += rows
    return spans


def keep_tokens(spans: Sequence[Span]) -> None:
    """The memory now holds what was fed."""
    for span in spans:
        span.state.tokens += span.tokens
        span.state.token_last = None


def sample_spans(spans: Sequence[Span], logits: Rows) -> list[Sample]:
    """A sample for each entry, in the order of the batch; after `keep_tokens`."""
    rows: list[RowWanted] = []
    for span in spans:
        if span.entry.wants_token and span.state.fault is None:
            assert span.state.sampler is not None, "checked when it was laid out"
            last = span.rows.stop - 1
            rows.append(RowWanted(span.state.sampler, span.state.tokens, last))
    sampled = iter(sample_rows(rows, logits) if rows else ())
    samples = [Sample()] * len(spans)
    for span in spans:
        sample = samples[span.index]
        if span.entry.wants_token:
            fault = span.state.fault
            sample = next(sampled) if fault is None else Sample(fault=fault)
            _note_sampled(span.state, sample)
        if span.scored:
            scores = _score_prompt(span, logits)
            sample = Sample(sample.token, sample.logprob, scores, sample.fault)
        samples[span.index] = sample
    return samples


def _note_sampled(state: SlotContents, sample: Sample) -> None:
    """Keep what the next span may go on from.

    That span may lie here already. Behind a fault it is computed with any token, for the sake of
    the others in its batch, and has the same fault.
    """
    state.token_last = sample.token
    if sample.token is None:
        state.fault = sample.fault
        state.token_last = state.tokens[-1]


def _tokens_of(entry: Entry, state: SlotContents) -> tuple[int, ...]:
    """The tokens of an entry that fits what its slot holds."""
    if entry.start != len(state.tokens):
        raise BackendFailed(
            f"the span of slot {entry.slot} starts at {entry.start}, "
            f"and the slot holds {len(state.tokens)} tokens."
        )
    if entry.wants_token and state.sampler is None:
        raise BackendFailed(f"a token is wanted of slot {entry.slot}, never opened.")
    tokens = entry.tokens
    if entry.continues:
        if tokens or state.token_last is None:
            raise BackendFailed(
                f"slot {entry.slot} is to continue from its last token, and "
                f"{'has tokens given as well' if tokens else 'has sampled none'}."
            )
        tokens = (state.token_last,)
    if not tokens:
        raise BackendFailed(f"the span of slot {entry.slot} is empty.")
    return tokens


def _scored_positions(entry: Entry, state: SlotContents) -> range:
    """The positions of the span whose prompt logprobs are wanted and can be had.

    The row that predicts the span's first token came with the span before it. Where that was
    computed in another slot the row is gone, and the span is left out as a whole: the scheduler
    lets this happen only to prompts that have been scored already.
    """
    sampler = state.sampler
    if sampler is None or sampler.sampling.prompt_logprobs is None:
        return range(0)
    if entry.start and (state.row_last is None or state.row_last.position != entry.start):
        return range(0)
    prompt_count = sampler.sampling.prompt_count
    if entry.start >= prompt_count:
        return range(0)
    return range(entry.start, min(entry.end, prompt_count))


def _score_prompt(span: Span, logits: Rows) -> tuple[TokenLogprob, ...]:
    """Logprobs of the span's prompt tokens; keeps the row that the next span needs."""
    state, entry = span.state, span.entry
    assert state.sampler is not None, "scored spans have a sampler"
    count = state.sampler.sampling.prompt_logprobs
    assert count is not None, "scored spans want logprobs"
    scores: tuple[TokenLogprob, ...] = ()
    if entry.start:
        assert state.row_last is not None, "checked when it was fed"
        scores = prompt_logprobs(
            state.row_last.logits[np.newaxis], [state.tokens[entry.start]], count
        )
    later = range(entry.start + 1, span.scored.stop)
    first = span.rows.start
    scores += prompt_logprobs(
        np.asarray(logits[first : first + len(later)]),
        state.tokens[later.start : later.stop],
        count,
    )
    state.row_last = None
    if entry.end < state.sampler.sampling.prompt_count:
        state.row_last = LastRow(entry.end, logits[span.rows.stop - 1].copy())
    return scores
