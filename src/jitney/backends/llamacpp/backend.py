"""The llama.cpp backend: computes a batch in passes, each one `llama_decode`.

A slot is a sequence of the library. Code that any library needs is in `ModelBackend`. The library
chooses kernels by the size of a batch, so logits depend a little on what else is in the batch. This
is not so where the passes have a shape in which all tokens are computed alike (`passes`).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any  # Any: numbers as a trial wrote them down

import numpy as np
import numpy.typing as npt

from jitney.backends.llamacpp.attention import PassShape
from jitney.backends.llamacpp.bindings import (
    PASS_TOKENS_MAX,
    Context,
    LlamaCppSettings,
    Model,
    native_log,
    supports_gpu,
)
from jitney.backends.llamacpp.memory_layout import token_bytes_of
from jitney.backends.llamacpp.passes import Pass, plan_passes, whole_pass
from jitney.backends.machine import free_memory
from jitney.backends.machine.neighbours import Neighbours
from jitney.backends.shared.model_backend import ModelBackend
from jitney.backends.shared.slots import EntryRows, SlotMemory
from jitney.core.backend import Backend, Segment, Traits
from jitney.core.request import checked_bytes
from jitney.errors import BackendCrashed, BackendFailed, ConfigError, ModelError
from jitney.models.gguf import read_header

Bytes = npt.NDArray[np.uint8]
Row = npt.NDArray[np.float32]
NO_ROW = np.empty(0, np.float32)


def make_backend(settings: LlamaCppSettings) -> Backend:
    """The backend, with its model loaded. Raises a SetupError."""
    return ModelBackend(LlamaCppModel(settings))


class LlamaCppModel:
    """Implements `jitney.backends.shared.model_backend.ForwardModel` on llama.cpp."""

    wants_slot_order = True

    def __init__(self, settings: LlamaCppSettings) -> None:
        self._settings = settings
        self._shape: PassShape = settings
        self._model: Model | None = None
        header = read_header(Path(settings.model))
        model = _load_model(settings, header.file_bytes)
        token_bytes = token_bytes_of(header, settings.kv_type)
        if settings.gpu_layers == 0:
            work_bytes = _work_bytes(settings, header.head_count, model.vocabulary_count)
            free_memory.check_states(settings.slots_native, header.state_bytes)
            work_bytes += settings.slots_native * header.state_bytes
            free_memory.check_memory(settings.cells, token_bytes, work_bytes)
        self.cells = Context(model, settings)
        self._neighbours = Neighbours(settings.threads)
        self._threads = settings.threads
        self.max_num_batched_tokens = settings.max_num_batched_tokens
        self.slot_tokens_max = settings.slot_tokens_max or settings.kv_tokens
        self.vocabulary = model.vocabulary()
        self.traits = Traits(
            name="llamacpp",
            slots_max=settings.slots,
            kv_tokens=min(settings.kv_tokens, settings.cells),
            model_len_max=min(model.trained_len, settings.slot_tokens_max or model.trained_len),
            # A saved slot has not what a window passed, and could not be cut back.
            can_save=not model.has_window,
            kv_bytes_per_token=token_bytes,
            state_bytes=0 if model.is_rewindable else max(header.state_bytes, 1),
            # The trial ran with these kernels.
            batch_invariant=settings.batch_invariant and settings.extra_kernels,
            decodes_differ=settings.decodes_differ,
        )
        self._model = model

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Use another shape of passes from now on. For trials, with every slot empty."""
        self._shape = PassShape(**shape)
        assert self._settings.slots % self._shape.rows_group == 0, shape

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, one after the other."""
        model = self._model
        if model is None:
            raise BackendCrashed("The backend was closed.")
        # llama.cpp compiles its patterns at each call (about 60 us), and a chat template repeats
        # the same texts between messages.
        known: dict[Segment, list[int]] = {}
        for text in dict.fromkeys(texts):
            known[text] = model.encode(checked_bytes(text[0]), special=text[1])
        return [token for text in texts for token in known[text]]

    def close(self) -> None:
        """Release everything. The weights stay until the last `encode` that uses them ends."""
        self.cells.close()
        self._model = None

    def forward(self, laid_out: Sequence[EntryRows], memory: SlotMemory[Bytes]) -> list[Row]:
        """The rows of logits for these entries."""
        self._choose_threads()
        passes: Iterable[Pass] = [whole_pass(laid_out)]
        if self._settings.is_split:

            def held(slot: int) -> int:
                # The library has a few more slots, to make whole groups.
                return memory.contents(slot).length if slot < self._settings.slots else 0

            passes = plan_passes(laid_out, held, self._settings.slot_tokens_max, self._shape)
        return self._compute(passes, laid_out[-1].rows.stop)

    def _compute(self, passes: Iterable[Pass], rows: int) -> list[Row]:
        """The rows of logits, computed in these passes."""
        logits: list[Row] = [NO_ROW] * rows
        last: list[int] = []
        for each in passes:
            # The next pass overwrites the library's logits.
            for row in last:
                logits[row] = logits[row].copy()
            self._decode(each)
            last = [row for _, row in each.result_rows]
            if each.result_rows:
                found = self.cells.logits(len(each.logit_rows))
                for at, row in each.result_rows:
                    logits[row] = found[at]
        return logits

    def _decode(self, one_pass: Pass) -> None:
        """One pass, with the truncations before and after it."""
        if one_pass.cut_before is not None:
            self.cells.truncate(*one_pass.cut_before)
        self._feed(one_pass)
        started = perf_counter()
        status = self.cells.decode(len(one_pass.tokens))
        self._neighbours.computed(perf_counter() - started)
        if status == 1:
            raise BackendFailed(
                f"Memory has no room for the {len(one_pass.tokens)} tokens of a pass."
            )
        if status != 0:
            raise BackendFailed(f"llama.cpp failed with status {status}: {native_log().reason()}.")
        for slot, length in one_pass.cut_after:
            self.cells.truncate(slot, length)

    def _choose_threads(self) -> None:
        """Use fewer threads while another process is busy: the threads wait by spinning."""
        threads = self._neighbours.threads()
        if threads != self._threads:
            self.cells.set_threads(threads)
            self._threads = threads

    def _feed(self, one_pass: Pass) -> None:
        """Write a pass into the arrays of the context."""
        count = len(one_pass.tokens)
        context = self.cells
        context.tokens[:count] = one_pass.tokens
        context.positions[:count] = one_pass.positions
        context.slots[:count] = one_pass.slots
        context.needs_logits[:count] = 0
        context.needs_logits[one_pass.logit_rows] = 1


def _load_model(settings: LlamaCppSettings, weights_bytes: int) -> Model:
    path = Path(settings.model)
    if settings.gpu_layers == 0:
        free_memory.check_weights(path, weights_bytes)
    elif not supports_gpu():
        raise ConfigError(
            "gpu_layers is given, and this llama.cpp was not built for a GPU, or finds none; leave "
            "it out, or add one for it: `jitney backends --add llamacpp-vulkan` on Linux x86-64, "
            "or the extra `llama`, compiled with CMAKE_ARGS=-DGGML_CUDA=ON"
        )
    model = Model(path, gpu_layers=settings.gpu_layers, extra_kernels=settings.extra_kernels)
    if not model.is_causal_decoder:
        raise ModelError(f"{path} is not a model that continues a text, so it cannot be served.")
    if settings.is_split and not model.is_rewindable:
        raise ModelError(
            f"{path} keeps a recurrent state that its header does not name; give a kv_tokens that "
            "is too small for memory of each slot's own, and all slots share one pool."
        )
    return model


def _work_bytes(settings: LlamaCppSettings, head_count: int, vocabulary_count: int) -> int:
    """Most of the memory that a pass needs besides weights and cells: scores and logits."""
    cells = settings.slot_tokens_max or settings.kv_tokens
    scores = 0 if settings.flash_attention else cells * head_count
    return 4 * PASS_TOKENS_MAX * (scores + vocabulary_count)
