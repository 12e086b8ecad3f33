"""The torch backend: one pass of the model in `model.py` per batch, on the CPU.

A slot's memory is a list of blocks. Code that any library needs is in `ModelBackend`. The library
chooses kernels by the size of a pass. So where equal texts are promised (invariant 4), decodes are
one pass and tokens of prompts another, and each is filled up to whole tiles: a token is then
computed by the same kernel whatever it stands beside.

Tests: tests/conformance.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from jitney.backends.shared.block_cells import BlockCells
from jitney.backends.shared.host_sampler import Rows
from jitney.backends.shared.model_backend import ModelBackend
from jitney.backends.shared.paging import BlockPool
from jitney.backends.shared.slots import EntryRows, SlotMemory, rows_missing
from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.checkpoint import architecture_at
from jitney.backends.torch.kind import GPU_BLOCK_TOKENS
from jitney.backends.torch.load_model import Placement, load_model, tensors_of
from jitney.backends.torch.model import Decoder
from jitney.backends.torch.pass_rows import PassRows, Span, pack
from jitney.backends.torch.plain_ops import PlainOps
from jitney.backends.torch.scaled_weight import FP8
from jitney.core.backend import Backend, Segment, Traits
from jitney.errors import ConfigError, ModelError
from jitney.tokenizers.tokenizer import ModelTokenizer, encode_all, read_tokenizer

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": FP8,  # of keys and values only
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Which model, how much memory, and how the library uses the machine."""

    model: str
    """The folder or the GGUF."""
    kv_tokens: int
    """0 on a GPU for all that is free."""
    slots: int
    max_num_batched_tokens: int
    threads: int
    dtype: str
    kv_dtype: str
    device: str = "cpu"
    """`cpu` or `cuda`. What follows up to `decodes_differ` is for the CPU."""
    max_num_seqs: int = 0
    """On a GPU: the most sequences in a pass; 0 for as many as there are slots."""
    memory_percent: int = 90
    """On a GPU: how much of its memory is used, weights included."""
    model_len_max: int = 0
    """On a GPU: the longest sequence; 0 for what the model and the memory allow."""
    quantization: str = ""
    """`fp8` or `int8` for the weights of layers, or empty."""
    block_tokens: int = 32
    decode_tile: int = 0
    """Products take so many decodes at a time; 0 means all rows of a pass at once."""
    span_tile: int = 0
    """Products take so many tokens of prompts at a time; 0 as above."""
    decodes_differ: bool = False
    """Whether a single token is rounded in another way than one in a span."""
    batch_invariant: bool = False
    """Whether all tokens are computed alike in passes with these tiles."""

    def __post_init__(self) -> None:
        block_tokens = self.block_tokens if self.device == "cpu" else GPU_BLOCK_TOKENS
        is_all = self.device != "cpu" and not self.kv_tokens
        if self.kv_tokens < block_tokens and not is_all:
            raise ConfigError(
                f"kv_tokens is {self.kv_tokens}, and the torch backend takes memory in blocks of "
                f"{block_tokens} tokens; raise it."
            )

    @property
    def sequences_max(self) -> int:
        """The most sequences in a pass: other slots hold what may be reused."""
        return self.max_num_seqs or self.slots


def make_backend(settings: TorchSettings) -> Backend:
    """The backend, with its model loaded. Raises a SetupError."""
    if settings.device == "cuda":
        # Triton is not there on every machine.
        loading = importlib.import_module("jitney.backends.torch.gpu_loading")
        made: Backend = loading.make_gpu_backend(settings)
        return made
    return ModelBackend(TorchModel(settings))


def read_text_side(path: Path) -> tuple[ModelTokenizer, Architecture]:
    """The tokenizer and the numbers of a model. Raises ModelError where they do not go together."""
    tokenizer = read_tokenizer(path)
    count = len(tokenizer.vocabulary.pieces)
    shape = architecture_at(path, count)
    if count > shape.vocabulary:
        raise ModelError(
            f"{path} has a tokenizer of {count} tokens, and the model knows {shape.vocabulary}; "
            "fetch it again."
        )
    return tokenizer, shape


class TorchModel:
    """Implements `jitney.backends.shared.model_backend.ForwardModel` on the CPU."""

    wants_slot_order = False

    def __init__(self, settings: TorchSettings) -> None:
        torch.set_num_threads(settings.threads)
        path = Path(settings.model)
        self._tokenizer, shape = read_text_side(path)
        self.vocabulary = self._tokenizer.vocabulary
        self._tokens = len(self.vocabulary.pieces)
        self.max_num_batched_tokens = settings.max_num_batched_tokens
        self.slot_tokens_max = min(shape.length_max, settings.kv_tokens)
        self._block_tokens = settings.block_tokens
        blocks = settings.kv_tokens // settings.block_tokens
        self._spare_block = blocks
        self._device = torch.device("cpu")
        place = Placement(
            device=self._device,
            dtype=DTYPES[settings.dtype],
            kv_dtype=DTYPES[settings.kv_dtype],
            # One more, for the rows that fill up a pass.
            blocks=blocks + 1,
            block_tokens=settings.block_tokens,
            positions=self.slot_tokens_max,
            quantization=settings.quantization,
        )
        model = load_model(tensors_of(path, shape), shape, place)
        self._model: Decoder | None = model
        self._decode_ops = PlainOps(shape, settings.decode_tile)
        self._span_ops = PlainOps(shape, settings.span_tile)
        self.cells = BlockCells(
            (cache for layer in model.layers for cache in (layer.keys, layer.values)),
            BlockPool(settings.slots, blocks, settings.block_tokens),
        )
        self.traits = Traits(
            name="torch",
            slots_max=settings.slots,
            kv_tokens=blocks * settings.block_tokens,
            model_len_max=shape.length_max,
            block_tokens=settings.block_tokens,
            kv_bytes_per_token=shape.kv_values_per_token * place.kv_dtype.itemsize,
            batch_invariant=settings.batch_invariant,
            decodes_differ=settings.decodes_differ,
        )

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Use another shape of passes from now on. For trials, with every slot empty."""
        self._decode_ops = PlainOps(self._decode_ops.shape, shape.get("decode_tile", 0))
        self._span_ops = PlainOps(self._span_ops.shape, shape.get("span_tile", 0))

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
        with torch.inference_mode():
            return self._logits(self._model, laid_out)

    def _logits(self, model: Decoder, laid_out: Sequence[EntryRows]) -> Rows:
        decodes = [each for each in laid_out if _is_decode(each)]
        others = [each for each in laid_out if not _is_decode(each)]
        hidden = []
        for entries, ops in ((decodes, self._decode_ops), (others, self._span_ops)):
            if entries:
                packed = self._pack(entries, len(decodes) if entries is decodes else 0, ops.tile)
                hidden.append(model.hidden(packed, ops)[packed.wanted])
        places = [row for each in (*decodes, *others) for row in each.rows]
        if not places:
            return []
        # The logits come in the order of the entries.
        states = torch.cat(hidden)[torch.tensor(places).argsort()]
        missing = rows_missing(len(states), max(self._decode_ops.tile, 1))
        filled = torch.nn.functional.pad(states, (0, 0, 0, missing))
        logits = model.logits(filled, self._decode_ops)[: len(states), : self._tokens]
        rows: npt.NDArray[np.float32] = logits.contiguous().numpy()
        return rows

    def _pack(self, entries: Sequence[EntryRows], decodes: int, tile: int) -> PassRows:
        spans = [
            Span(each.tokens, each.entry.start, self.cells.blocks(each.entry.slot), len(each.rows))
            for each in entries
        ]
        count = sum(len(span.tokens) for span in spans)
        return pack(
            spans,
            decodes=decodes,
            row_count=count + rows_missing(count, max(tile, 1)),
            block_tokens=self._block_tokens,
            spare_block=self._spare_block,
            device=self._device,
        )


def _is_decode(each: EntryRows) -> bool:
    """Whether an entry is one generated token, and not a part of a prompt."""
    return each.entry.length == 1 and each.entry.start >= max(each.contents.prompt_count, 1)
