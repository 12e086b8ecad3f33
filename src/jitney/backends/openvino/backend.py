"""The OpenVINO backend: one inference of a paged model per batch.

A slot's memory is a list of blocks. Code that any library needs is in `ModelBackend`. The library
chooses kernels by the size of a pass, so a small pass is filled up, and no token of a prompt is
computed alone (invariant 4). It prepares itself for every new size, so all passes are filled up to
one of a few sizes.

Tests: tests/conformance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: numbers as a trial wrote them down

from jitney.backends.openvino.families import BLOCK_TOKENS
from jitney.backends.openvino.graph import GraphShape, Inputs, PagedModel
from jitney.backends.openvino.packing import FILLER, Packing, filled_rows
from jitney.backends.shared.block_cells import BlockCells
from jitney.backends.shared.host_sampler import Rows
from jitney.backends.shared.model_backend import ModelBackend
from jitney.backends.shared.paging import BlockPool
from jitney.backends.shared.slots import EntryRows, SlotMemory, is_lone
from jitney.core.backend import Backend, Segment, Traits
from jitney.errors import ConfigError, ModelError
from jitney.sandbox.interrupts import signal_stack_kept
from jitney.tokenizers.tokenizer import encode_all, read_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoSettings(GraphShape):
    """Which model, how much memory, and how the library uses the machine."""

    model: str
    """The folder of the converted model."""
    vocabulary: str
    """The GGUF or the folder with the tokenizer of the model."""
    kv_tokens: int
    slots: int
    max_num_batched_tokens: int
    model_len_max: int
    rows_min: int = 1
    """A pass has at least this many rows."""
    head_rows_min: int = 1
    """Logits are computed for at least this many rows."""
    decodes_differ: bool = False
    """Whether a single token is rounded in another way than one in a span."""
    batch_invariant: bool = False
    """Whether all tokens are computed alike in passes with these rows."""

    def __post_init__(self) -> None:
        if self.kv_tokens < BLOCK_TOKENS:
            raise ConfigError(
                f"kv_tokens is {self.kv_tokens}, and OpenVINO takes memory in blocks of "
                f"{BLOCK_TOKENS} tokens; raise it."
            )


def make_backend(settings: OpenVinoSettings) -> Backend:
    """The backend, with its model loaded. Raises a SetupError."""
    with signal_stack_kept():
        return ModelBackend(OpenVinoModel(settings))


class OpenVinoModel:
    """Implements `jitney.backends.shared.model_backend.ForwardModel` on OpenVINO."""

    wants_slot_order = False

    def __init__(self, settings: OpenVinoSettings) -> None:
        self._tokenizer = read_tokenizer(Path(settings.vocabulary))
        self.vocabulary = self._tokenizer.vocabulary
        self.max_num_batched_tokens = settings.max_num_batched_tokens
        self.slot_tokens_max = settings.model_len_max
        blocks = settings.kv_tokens // BLOCK_TOKENS
        self._rows_min = settings.rows_min
        self._head_rows_min = settings.head_rows_min
        self._spare_block = blocks
        # One more, for the rows that fill up a pass.
        model = PagedModel(Path(settings.model), settings, blocks + 1)
        if model.vocabulary_count != len(self.vocabulary.pieces):
            raise ModelError(
                f"{settings.model} gives logits of {model.vocabulary_count} tokens, and its "
                f"tokenizer has {len(self.vocabulary.pieces)}; export or convert it again."
            )
        self._model: PagedModel | None = model
        self.cells = BlockCells(
            model.caches.values(), BlockPool(settings.slots, blocks, BLOCK_TOKENS)
        )
        self.traits = Traits(
            name="openvino",
            slots_max=settings.slots,
            kv_tokens=blocks * BLOCK_TOKENS,
            model_len_max=settings.model_len_max,
            block_tokens=BLOCK_TOKENS,
            kv_bytes_per_token=-(-model.block_bytes // BLOCK_TOKENS),
            batch_invariant=settings.batch_invariant,
            decodes_differ=settings.decodes_differ,
        )

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Use another shape of passes from now on. For trials, with every slot empty."""
        self._rows_min = shape.get("rows_min", 1)
        self._head_rows_min = shape.get("head_rows_min", 1)

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, one after the other."""
        return encode_all(self._tokenizer, texts)

    def close(self) -> None:
        """Release everything."""
        self._model = None
        self.cells.drop()

    def forward(self, laid_out: Sequence[EntryRows], memory: SlotMemory[list[Any]]) -> Rows:
        """The rows of logits for these entries."""
        assert self._model is not None, "The caller checked that the backend is open"
        for each in laid_out:
            self.cells.grow(each.entry.slot, len(each.tokens))
        return self._model.forward(self._pack(laid_out))

    def _pack(self, laid_out: Sequence[EntryRows]) -> Inputs:
        packing = Packing()
        for each in laid_out:
            tokens, start = self._input_of(each)
            packing.add(tokens, start, self.cells.blocks(each.entry.slot), len(each.rows))
        row_count = filled_rows(max(packing.row_count, self._rows_min))
        while packing.row_count < row_count:
            missing = min(row_count - packing.row_count, BLOCK_TOKENS)
            packing.add([FILLER] * missing, 0, [self._spare_block], 0)
        return packing.inputs(self._head_rows_min)

    def _input_of(self, each: EntryRows) -> tuple[Sequence[int], int]:
        """The tokens to compute for an entry, and the position of the first.

        A single token of a prompt is computed together with the token before it, which gets the
        same result again. Alone, it would go through another kernel.
        """
        if self._rows_min > 1 and is_lone(each.entry, each.contents.prompt_count):
            return (each.contents.tokens[-1], *each.tokens), each.entry.start - 1
        return each.tokens, each.entry.start
