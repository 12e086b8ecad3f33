"""Chooses tokens on the host, from rows of logits in numpy: `HostSampler`.

Called by backends on the thread that runs batches. What it needs of a slot is in its contents.
Where logprobs of a prompt are wanted, its slot keeps the last row of each entry, because the next
entry needs it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic

import numpy as np
import numpy.typing as npt

from jitney.backends.machine.cores import usable_cores
from jitney.backends.shared.slots import EntryRows, LastRow, SavedCells, SlotContents, SlotMemory
from jitney.core.batch import MemoryOperation, Open, Sample, Sampling, TokenLogprob
from jitney.errors import InvalidRequest, QueueFull
from jitney.sampling.argmax import RowArgmax
from jitney.sampling.constraint import ConstraintCompiler
from jitney.sampling.logprobs import prompt_logprobs
from jitney.sampling.sampler import SlotSampler, fault_of

ARGMAX_THREADS_MAX = 8
"""More are not faster: they wait for the memory."""

Rows = npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]
"""Rows of logits, in one piece or one by one."""


class HostSampler(Generic[SavedCells]):
    """Chooses the tokens of all slots."""

    def __init__(self, compiler: ConstraintCompiler, memory: SlotMemory[SavedCells]) -> None:
        self._compiler = compiler
        self._memory = memory
        self._argmax = RowArgmax(min(usable_cores(), ARGMAX_THREADS_MAX))

    def operate(self, operations: Sequence[MemoryOperation]) -> None:
        """Carry out a batch's operations. Tokens of opened slots are chosen as these say."""
        self._compiler.begin_batch()
        for operation in operations:
            self._memory.operate(operation)
            if isinstance(operation, Open):
                self._open(self._memory.contents(operation.slot), operation.sampling)

    def sample(self, laid_out: Sequence[EntryRows], logits: Rows) -> list[Sample]:
        """A sample for each of these, in their order. Their slots hold what was fed."""
        samples = []
        columns = None
        if isinstance(logits, np.ndarray) and 2 * len(laid_out) > len(logits):
            # Nearly all rows choose a token. Of a scored prompt only the last one does.
            columns = self._argmax(logits)
        for each in laid_out:
            each.contents.token_last = None
            sample = Sample()
            if each.entry.wants_token:
                at = each.rows.stop - 1
                best = None if columns is None else columns[at]
                sample = _choose(each.contents, logits[at], best)
            if each.scored:
                sample = replace(sample, prompt_logprobs=_score_prompt(each, logits))
            samples.append(sample)
        return samples

    def _open(self, contents: SlotContents, sampling: Sampling) -> None:
        matcher = None
        contents.fault = contents.token_last = None
        if sampling.constraint is not None:
            try:
                matcher = self._compiler.compile(sampling.constraint)
            except (InvalidRequest, QueueFull) as error:
                # It compiled when it was prepared. Other entries of the batch must not fail for it.
                contents.fault = fault_of(error)
        contents.sampler = SlotSampler(sampling, matcher)


def _choose(contents: SlotContents, row: npt.NDArray[np.float32], best: int | None) -> Sample:
    """The sample of a slot; keeps what the next entry may continue from."""
    if contents.fault is not None:
        sample = Sample(fault=contents.fault)
    else:
        assert contents.sampler is not None, "Checked when it was laid out"
        sample = contents.sampler.sample(contents.tokens, row, best)
    contents.fault = sample.fault
    # The next entry may have been sent already. After a fault it is computed with any token, so
    # that the others in its batch can run, and gets the same fault.
    contents.token_last = contents.tokens[-1] if sample.token is None else sample.token
    return sample


def _score_prompt(each: EntryRows, logits: Rows) -> tuple[TokenLogprob, ...]:
    """Logprobs of the entry's prompt tokens; keeps the row that the next entry needs."""
    entry, contents = each.entry, each.contents
    tokens, sampling = contents.tokens, contents.sampling
    assert sampling is not None, "Scored entries have a sampling"
    count = sampling.prompt_logprobs
    assert count is not None, "Scored entries want logprobs"
    scores: tuple[TokenLogprob, ...] = ()
    if entry.start:
        row = contents.row_last
        assert row is not None, "Checked when it was laid out"
        scores = prompt_logprobs(row.logits[np.newaxis], [tokens[entry.start]], count)
    later = range(entry.start + 1, each.scored.stop)
    first = each.rows.start
    scores += prompt_logprobs(
        np.asarray(logits[first : first + len(later)]), tokens[later.start : later.stop], count
    )
    contents.row_last = None
    if entry.end < sampling.prompt_count:
        contents.row_last = LastRow(entry.end, logits[each.rows.stop - 1].copy())
    return scores
