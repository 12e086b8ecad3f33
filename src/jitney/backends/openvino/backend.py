"""The OpenVINO backend: one inference of a paged model per batch.

A slot's memory is a list of blocks. `execute` and `reset` run on the engine thread; `encode` and
`prepare` on any. Promises BackendFailed on every violated precondition, before native code sees
it, and one fault per row that cannot be sampled. Logits depend a little on what else is in the
batch, because kernels are chosen by its size: `traits.exact` is false.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from jitney.backends.openvino.cells import PagedCells
from jitney.backends.openvino.families import BLOCK_TOKENS
from jitney.backends.openvino.graph import GraphShape, Packed, PagedModel
from jitney.backends.openvino.tokenizer import Tokenizer
from jitney.backends.paging import BlockPool
from jitney.backends.slots import SlotMemory
from jitney.backends.spans import Span, keep_tokens, lay_out, sample_spans
from jitney.core import limits
from jitney.core.backend import Text, Traits, Vocabulary
from jitney.core.batch import Batch, Outcome, Sample
from jitney.core.params import Constraint
from jitney.errors import (
    BackendCrashed,
    BackendFailed,
    ConfigError,
    ModelError,
)
from jitney.sampling.constraint import ConstraintCompiler


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoSettings:
    """Which model, how much memory, and how the library is to use the machine."""

    model: Path
    """The folder of the converted model."""
    vocabulary: Path
    """The GGUF that the model came from: its tokenizer is the model's own."""
    kv_tokens: int
    slots: int
    batch_tokens_max: int
    model_len_max: int
    threads: int
    inference_precision: str = "f32"
    kv_precision: str = "f32"
    activation_group: int = 0

    def __post_init__(self) -> None:
        # Settings may have come over a pipe, where a path is text.
        object.__setattr__(self, "model", Path(self.model))
        object.__setattr__(self, "vocabulary", Path(self.vocabulary))
        for name in ("kv_tokens", "slots", "batch_tokens_max", "model_len_max", "threads"):
            value = getattr(self, name)
            if not 1 <= value <= limits.TOKENS_MAX:
                raise ConfigError(f"{name} must be from 1 to {limits.TOKENS_MAX}, and got {value}.")
        if self.kv_tokens < BLOCK_TOKENS:
            raise ConfigError(
                f"kv_tokens is {self.kv_tokens}, and OpenVINO takes memory in blocks of "
                f"{BLOCK_TOKENS} tokens; raise it."
            )


class OpenVinoBackend:
    """Implements `jitney.core.backend.Backend` on OpenVINO."""

    def __init__(self, settings: OpenVinoSettings) -> None:
        self._settings = settings
        self._tokenizer = Tokenizer(settings.vocabulary)
        blocks = settings.kv_tokens // BLOCK_TOKENS
        model = PagedModel(
            settings.model,
            GraphShape(
                blocks=blocks,
                threads=settings.threads,
                inference_precision=settings.inference_precision,
                kv_precision=settings.kv_precision,
                activation_group=settings.activation_group,
            ),
        )
        if model.vocabulary_count != len(self.vocabulary.pieces):
            raise ModelError(
                f"{settings.model} gives logits of {model.vocabulary_count} tokens, and its "
                f"tokenizer has {len(self.vocabulary.pieces)}; export or convert it again."
            )
        self._model: PagedModel | None = model
        self._cells = PagedCells(
            model.caches.values(), BlockPool(blocks, BLOCK_TOKENS), settings.slots
        )
        self._compiler = ConstraintCompiler(self.vocabulary, self._encode_plain)
        self._memory = SlotMemory(self._cells, settings.slots, self._compiler.compile)
        self._traits = Traits(
            name="openvino",
            slots_max=settings.slots,
            kv_tokens=blocks * BLOCK_TOKENS,
            model_len_max=settings.model_len_max,
            block_tokens=BLOCK_TOKENS,
            kv_bytes_per_token=-(-model.block_bytes // BLOCK_TOKENS),
            batch_invariant=False,
        )

    @property
    def traits(self) -> Traits:
        """Numbers that hold for as long as this backend lives."""
        return self._traits

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        return self._tokenizer.vocabulary

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch; after BackendFailed the memory is to be reset."""
        started = perf_counter()
        self._living_model()
        self._compiler.begin_batch()
        for operation in batch.operations:
            self._memory.operate(operation)
        samples = self._run(batch) if batch.entries else []
        return Outcome(batch.number, tuple(samples), perf_counter() - started)

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._living_model()
        self._memory.reset()

    def check(self) -> None:
        """In this process it lives until it is closed."""
        self._living_model()

    def encode(self, texts: Sequence[Text]) -> list[int]:
        """Tokens of texts, one after the other."""
        tokens: list[int] = []
        for text, special in texts:
            tokens += self._tokenizer.encode(text, special=special)
        return tokens

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        self._compiler.prepare(constraint)

    def close(self) -> None:
        """Release everything; idempotent."""
        self._compiler.close()
        self._model = None
        self._cells.drop()
        self._memory.reset()

    def _living_model(self) -> PagedModel:
        model = self._model
        if model is None:
            raise BackendCrashed("the backend was closed.")
        return model

    def _encode_plain(self, text: str) -> list[int]:
        return self.encode([(text, False)])

    def _run(self, batch: Batch) -> list[Sample]:
        """The forward pass, and a sample for each entry."""
        spans = lay_out(batch, self._memory, self._settings.batch_tokens_max, by_slot=False)
        for span in spans:
            if span.entry.end > self._settings.model_len_max:
                raise BackendFailed(
                    f"slot {span.entry.slot} would hold {span.entry.end} tokens; "
                    f"the model takes {self._settings.model_len_max}."
                )
            self._cells.grow(span.entry.slot, len(span.tokens))
        logits = self._living_model().forward(self._pack(spans))
        keep_tokens(spans)
        return sample_spans(spans, logits)

    def _pack(self, spans: Sequence[Span]) -> Packed:
        tokens: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        rows: list[int] = []
        span_begins, block_begins = [0], [0]
        for span in spans:
            entry = span.entry
            tokens += span.tokens
            positions += range(entry.start, entry.end)
            blocks += self._cells.blocks(entry.slot)
            rows += range(len(tokens) - len(span.rows), len(tokens))
            span_begins.append(len(tokens))
            block_begins.append(len(blocks))
        fed = np.array(tokens, np.int64)
        if fed.min() < 0 or fed.max() >= len(self.vocabulary.pieces):
            raise BackendFailed("a batch holds a token that is not in the vocabulary.")
        return Packed(
            tokens=fed,
            positions=np.array(positions, np.int64),
            lengths_past=np.array([span.entry.start for span in spans], np.int32),
            span_begins=np.array(span_begins, np.int32),
            blocks=np.array(blocks, np.int32),
            block_begins=np.array(block_begins, np.int32),
            length_max=max(span.entry.end for span in spans),
            # A pass that nobody wants logits of computes one row all the same.
            rows=np.array(rows or [0], np.int64),
        )
