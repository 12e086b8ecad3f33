"""The OpenVINO backend: one inference of a paged model per batch.

A slot's memory is a list of blocks. `execute` and `reset` run on the engine thread; `encode` and
`prepare` on any. Promises BackendFailed on every violated precondition, before native code sees
it, and one fault per row that cannot be sampled. Kernels are chosen by the size of a pass, so a
small one is filled up, and no token of a prompt is computed by itself (invariant 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any  # Any: numbers as a trial wrote them down

from jitney.backends.openvino.cells import PagedCells
from jitney.backends.openvino.families import BLOCK_TOKENS
from jitney.backends.openvino.graph import GraphShape, Packed, PagedModel
from jitney.backends.openvino.packing import FILLER, Packing
from jitney.backends.shared.paging import BlockPool
from jitney.backends.shared.shapes import is_lone
from jitney.backends.shared.slots import SlotMemory
from jitney.backends.shared.spans import Span, keep_tokens, lay_out, sample_spans
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
from jitney.tokenizers.tokenizer import read_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoSettings:
    """Which model, how much memory, and how the library is to use the machine."""

    model: Path
    """The folder of the converted model."""
    vocabulary: Path
    """The GGUF that the model came from: its tokenizer is the model's own."""
    kv_tokens: int
    slots: int
    max_num_batched_tokens: int
    model_len_max: int
    threads: int
    inference_precision: str = "f32"
    kv_precision: str = "f32"
    activation_group: int = 0
    rows_min: int = 1
    """A pass has at least so many rows."""
    head_rows_min: int = 1
    """Logits are computed for at least so many of them."""
    decodes_differ: bool = False
    """Whether a token of its own is rounded otherwise than one in a span."""
    batch_invariant: bool = False
    """Whether everything is computed alike that way."""

    def __post_init__(self) -> None:
        # Settings may have come over a pipe, where a path is text.
        object.__setattr__(self, "model", Path(self.model))
        object.__setattr__(self, "vocabulary", Path(self.vocabulary))
        for name in ("kv_tokens", "slots", "max_num_batched_tokens", "model_len_max", "threads"):
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
        self._tokenizer = read_tokenizer(settings.vocabulary)
        blocks = settings.kv_tokens // BLOCK_TOKENS
        self._rows_min = settings.rows_min
        self._head_rows_min = settings.head_rows_min
        self._spare_block = blocks
        model = PagedModel(
            settings.model,
            GraphShape(
                # One more, for rows that fill a pass up.
                blocks=blocks + 1,
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
            batch_invariant=settings.batch_invariant,
            decodes_differ=settings.decodes_differ,
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

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Compute in passes of another shape from here on: for trials, with every slot empty."""
        self._rows_min = shape.get("rows_min", 1)
        self._head_rows_min = shape.get("head_rows_min", 1)

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
        spans = lay_out(batch, self._memory, self._settings.max_num_batched_tokens, by_slot=False)
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
        packing = Packing()
        for span in spans:
            tokens, start = self._alike(span)
            packing.add(tokens, start, self._cells.blocks(span.entry.slot), len(span.rows))
        while packing.row_count < self._rows_min:
            missing = min(self._rows_min - packing.row_count, BLOCK_TOKENS)
            packing.add([FILLER] * missing, 0, [self._spare_block], 0)
        return self._checked(packing.packed(self._head_rows_min))

    def _alike(self, span: Span) -> tuple[Sequence[int], int]:
        """What is fed for a span, and from which position on.

        A single token of a prompt takes the one before it along, which comes out as it was: by
        itself it would go through another kernel.
        """
        sampler = span.state.sampler
        prompt_count = sampler.sampling.prompt_count if sampler is not None else 0
        if self._rows_min > 1 and is_lone(span.entry, prompt_count):
            return (span.state.tokens[-1], *span.tokens), span.entry.start - 1
        return span.tokens, span.entry.start

    def _checked(self, packed: Packed) -> Packed:
        if packed.tokens.min() < 0 or packed.tokens.max() >= len(self.vocabulary.pieces):
            raise BackendFailed("a batch holds a token that is not in the vocabulary.")
        return packed
