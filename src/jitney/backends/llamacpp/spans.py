"""Entries as the backend feeds them: checked tokens, rows of the logits, prompt logprobs.

Functions over one slot's state, called by `backend` on the engine thread. `scored_positions` is
asked before the forward pass, `score_prompt` after it; between them a slot keeps the one row that
the next span of its prompt needs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitney.backends.llamacpp.slots import LastRow, SlotState
from jitney.core.batch import Entry, Logprob
from jitney.errors import BackendFailed
from jitney.sampling.logprobs import prompt_logprobs

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Span:
    """An entry as it was fed: its slot's state, and which rows of the logits are its own."""

    index: int
    """Its place among the entries of the batch."""
    entry: Entry
    state: SlotState
    tokens: tuple[int, ...]
    rows: range
    """Rows in the order of positions; they end with the span's last position."""
    scored: range
    """Positions of prompt tokens whose logprobs are wanted."""


def tokens_of(entry: Entry, state: SlotState) -> tuple[int, ...]:
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


def scored_positions(entry: Entry, state: SlotState) -> range:
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


def score_prompt(span: Span, logits: Rows) -> tuple[Logprob, ...]:
    """Logprobs of the span's prompt tokens; keeps the row that the next span needs."""
    state, entry = span.state, span.entry
    assert state.sampler is not None, "scored spans have a sampler"
    count = state.sampler.sampling.prompt_logprobs
    assert count is not None, "scored spans want logprobs"
    scores: tuple[Logprob, ...] = ()
    if entry.start:
        assert state.row_last is not None, "checked when it was fed"
        scores = prompt_logprobs(
            state.row_last.logits[np.newaxis], [state.tokens[entry.start]], count
        )
    later = range(entry.start + 1, span.scored.stop)
    first = span.rows.start
    scores += prompt_logprobs(
        logits[first : first + len(later)], state.tokens[later.start : later.stop], count
    )
    state.row_last = None
    if entry.end < state.sampler.sampling.prompt_count:
        state.row_last = LastRow(entry.end, logits[span.rows.stop - 1].copy())
    return scores
