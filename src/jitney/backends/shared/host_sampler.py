"""Chooses tokens on the host, from rows of logits in numpy: `HostSampler`.

Called by backends on the thread that runs batches. Where logprobs of a prompt are wanted, its slot
keeps the last row of each entry, because the next entry needs it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jitney.backends.machine.cores import usable_cores
from jitney.backends.shared.slots import EntryRows
from jitney.core.batch import (
    Copy,
    Discard,
    Fault,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Sample,
    Sampling,
    Save,
    TokenLogprob,
    Truncate,
)
from jitney.core.params import Constraint
from jitney.errors import InvalidRequest, QueueFull
from jitney.sampling.argmax import RowArgmax
from jitney.sampling.logprobs import prompt_logprobs
from jitney.sampling.sampler import SlotSampler, TokenMatcher, fault_of

ARGMAX_THREADS_MAX = 8
"""More are not faster: they wait for the memory."""

Rows = npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]
"""Rows of logits, in one piece or one by one."""


@dataclass(frozen=True, slots=True)
class LastRow:
    """Logits kept from one entry to the next: they predict the token at `position`."""

    position: int
    logits: npt.NDArray[np.float32]


@dataclass(slots=True)
class SlotChoice:
    """How the tokens of one slot are chosen."""

    sampler: SlotSampler | None = None
    fault: Fault | None = None
    """Why this slot cannot be sampled, such as a constraint that allows no token."""
    token_last: int | None = None
    """The token chosen last, while it is the next one after the slot's tokens."""
    row_last: LastRow | None = None


class HostSampler:
    """How the tokens of all slots are chosen."""

    def __init__(self, compile_constraint: Callable[[Constraint], TokenMatcher]) -> None:
        self._compile = compile_constraint
        self.choices: defaultdict[int, SlotChoice] = defaultdict(SlotChoice)
        """By slot."""
        self._saved_rows: dict[int, LastRow | None] = {}
        self._argmax = RowArgmax(min(usable_cores(), ARGMAX_THREADS_MAX))

    def reset(self) -> None:
        """Forget every slot and every ticket."""
        self.choices.clear()
        self._saved_rows.clear()

    def operate(self, operation: MemoryOperation) -> None:
        """Note an operation of a batch, which the memory has carried out."""
        match operation:
            case Open(slot, sampling):
                self._open(self.choices[slot], sampling)
            case Copy(target=slot) | Truncate(slot=slot):
                self.choices[slot].token_last = self.choices[slot].row_last = None
            case Save(slot, ticket):
                self._saved_rows[ticket] = self.choices[slot].row_last
            case Restore(ticket, slot):
                self.choices[slot].token_last = None
                self.choices[slot].row_last = self._saved_rows.pop(ticket)
            case Release(slot):
                self.choices.pop(slot, None)
            case Discard(ticket):
                del self._saved_rows[ticket]

    def has_row_before(self, slot: int, position: int) -> bool:
        """Whether the row that predicts this position is kept, from the entry before."""
        row = self.choices[slot].row_last
        return row is not None and row.position == position

    def sample(self, laid_out: Sequence[EntryRows], logits: Rows) -> list[Sample]:
        """A sample for each of these, in their order. Their slots hold what was fed."""
        samples = []
        columns = None
        if isinstance(logits, np.ndarray) and 2 * len(laid_out) > len(logits):
            # Nearly all rows choose a token. Of a scored prompt only the last one does.
            columns = self._argmax(logits)
        for each in laid_out:
            choice = self.choices[each.entry.slot]
            choice.token_last = None
            sample = Sample()
            if each.entry.wants_token:
                at = each.rows.stop - 1
                best = None if columns is None else columns[at]
                sample = _choose(choice, each.contents.tokens, logits[at], best)
            if each.scored:
                sample = replace(sample, prompt_logprobs=_score_prompt(choice, each, logits))
            samples.append(sample)
        return samples

    def _open(self, choice: SlotChoice, sampling: Sampling) -> None:
        matcher = None
        choice.fault = choice.token_last = None
        if sampling.constraint is not None:
            try:
                matcher = self._compile(sampling.constraint)
            except (InvalidRequest, QueueFull) as error:
                # It compiled when it was prepared. Other entries of the batch must not fail for it.
                choice.fault = fault_of(error)
        choice.sampler = SlotSampler(sampling, matcher)


def _choose(
    choice: SlotChoice, tokens: list[int], row: npt.NDArray[np.float32], best: int | None
) -> Sample:
    """The sample of a slot; keeps what the next entry may continue from."""
    if choice.fault is not None:
        sample = Sample(fault=choice.fault)
    else:
        assert choice.sampler is not None, "Checked when it was laid out"
        sample = choice.sampler.sample(tokens, row, best)
    choice.fault = sample.fault
    # The next entry may have been sent already. After a fault it is computed with any token, so
    # that the others in its batch can run, and gets the same fault.
    choice.token_last = tokens[-1] if sample.token is None else sample.token
    return sample


def _score_prompt(choice: SlotChoice, each: EntryRows, logits: Rows) -> tuple[TokenLogprob, ...]:
    """Logprobs of the entry's prompt tokens; keeps the row that the next entry needs."""
    entry, tokens, sampling = each.entry, each.contents.tokens, each.contents.sampling
    assert sampling is not None, "Scored entries have a sampling"
    count = sampling.prompt_logprobs
    assert count is not None, "Scored entries want logprobs"
    scores: tuple[TokenLogprob, ...] = ()
    if entry.start:
        assert choice.row_last is not None, "Checked when it was laid out"
        scores = prompt_logprobs(choice.row_last.logits[np.newaxis], [tokens[entry.start]], count)
    later = range(entry.start + 1, each.scored.stop)
    first = each.rows.start
    scores += prompt_logprobs(
        np.asarray(logits[first : first + len(later)]), tokens[later.start : later.stop], count
    )
    choice.row_last = None
    if entry.end < sampling.prompt_count:
        choice.row_last = LastRow(entry.end, logits[each.rows.stop - 1].copy())
    return scores
