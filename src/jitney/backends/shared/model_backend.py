"""`ModelBackend`: makes a backend from a model that computes logits.

All such backends share this code: memory operations, checks, sampling, constraints. One thread runs
batches and calls `reset`; any thread may call `encode` and `prepare`. Every violated precondition
raises BackendFailed before the model sees it. A row that cannot be sampled gets a fault of its own.

Tests: tests/conformance.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Generic, Protocol  # Any: numbers as a trial wrote them down

from jitney.backends.shared.host_sampler import HostSampler, Rows
from jitney.backends.shared.layout import BatchLayout
from jitney.backends.shared.prefix_disk import PackingCells, PrefixDisk, with_disk
from jitney.backends.shared.prefix_files import PrefixFiles
from jitney.backends.shared.slots import Cells, EntryRows, SavedCells, SlotMemory
from jitney.core.backend import Fetch, Fetched, Segment, Traits, Vocabulary
from jitney.core.batch import Batch, Outcome, Sample
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed
from jitney.sampling.constraint import ConstraintCompiler


class ForwardModel(Protocol[SavedCells]):
    """What a new backend has to implement."""

    traits: Traits
    """Numbers that do not change while the model is loaded."""
    vocabulary: Vocabulary
    max_num_batched_tokens: int
    """Tokens that one batch may have."""
    slot_tokens_max: int
    """Tokens that one slot may hold."""
    wants_slot_order: bool
    """Whether entries are to be laid out in the order of their slots."""

    @property
    def cells(self) -> Cells[SavedCells]:
        """Keys and values of every slot."""

    def forward(self, laid_out: Sequence[EntryRows], memory: SlotMemory[SavedCells]) -> Rows:
        """The rows of logits for these entries. Raises BackendFailed."""

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Use another shape of passes from now on. For trials, with every slot empty."""

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, one after the other. Raises BackendCrashed when it was closed."""

    def close(self) -> None:
        """Release everything."""


class ModelBackend(Generic[SavedCells]):
    """Implements `jitney.core.backend.Backend` for a model."""

    def __init__(self, model: ForwardModel[SavedCells]) -> None:
        self.traits = model.traits
        self.vocabulary = model.vocabulary
        self._model = model
        self._is_closed = False
        self._compiler = ConstraintCompiler(
            model.vocabulary, lambda text: model.encode([(text, False)])
        )
        self._memory = SlotMemory(model.cells, model.traits.slots_max, rewinds=model.traits.rewinds)
        self._disk: PrefixDisk[SavedCells] | None = None
        self._sampler = HostSampler(self._compiler, self._memory)
        self._layout = BatchLayout(
            self._memory,
            model.max_num_batched_tokens,
            model.slot_tokens_max,
            len(model.vocabulary.pieces),
        )

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch. After BackendFailed the caller must reset the memory."""
        started = perf_counter()
        self.check()
        self._sampler.operate(batch.operations)
        laid_out = self._layout.lay_out(batch, by_slot=self._model.wants_slot_order)
        samples = [Sample()] * len(laid_out)
        if laid_out:
            logits = self._model.forward(laid_out, self._memory)
            for each in laid_out:
                each.contents.tokens += each.tokens
            for each, sample in zip(laid_out, self._sampler.sample(laid_out, logits), strict=True):
                samples[each.index] = sample
        return Outcome.of(batch.number, samples, perf_counter() - started)

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self.check()
        self._memory.reset()

    def check(self) -> None:
        """Raise BackendCrashed if it was closed. In this process it cannot crash."""
        if self._is_closed:
            raise BackendCrashed("The backend was closed.")

    def use_prefixes(self, files: PrefixFiles) -> None:
        """From now on prefixes are stored here."""
        cells = self._model.cells
        assert isinstance(cells, PackingCells), "its kind says so"
        self._disk = self._memory.disk = PrefixDisk(files, cells, self._memory)
        self.traits = with_disk(self.traits)

    def fetch(self, asked: Fetch) -> Fetched:
        """Look for a stored prefix. Any thread."""
        return Fetched(asked.ticket) if self._disk is None else self._disk.fetch(asked)

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Use another shape of passes from now on. For trials, with every slot empty."""
        self._model.use_shape(shape)

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, one after the other."""
        return self._model.encode(texts)

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        self._compiler.prepare(constraint)

    def close(self) -> None:
        """Release everything; idempotent."""
        if self._is_closed:
            return
        try:
            self.reset()
        finally:
            self._is_closed = True
            self._compiler.close()
            self._model.close()
