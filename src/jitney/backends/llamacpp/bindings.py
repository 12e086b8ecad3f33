"""llama.cpp's C interface as typed objects: the only file that calls it.

Owns every pointer. Nothing native leaves this file but numpy views, which say how long they live.
Any thread may read a `Model`; a `Context` belongs to one thread. A failure to load is a ModelError;
`decode` returns the library's status. The caller checks the ranges of values.
"""

import ctypes
import functools
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jitney.backends.llamacpp import library
from jitney.backends.llamacpp.attention import PassShape
from jitney.backends.llamacpp.thread_pool import attach_pool
from jitney.backends.shared.slots import rows_missing
from jitney.backends.trials.trial_process import answer
from jitney.core.backend import Vocabulary
from jitney.errors import BackendFailed, ModelError
from jitney.sandbox.interrupts import interrupts_held

PASS_TOKENS_MAX = 512
"""A larger batch is computed in passes of this size: larger passes are no faster and need more
work space."""
LOG_CHARACTERS_MAX = 400
CELLS_UNIT = 256
"""The library rounds the cells of a slot up to a multiple of this."""
NOT_OF_TEXT = frozenset(
    {
        *("bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed"),
        *("modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe"),
        *("dflash", "eagle3", "gemma4-assistant"),
        *("pockettts", "qwen3tts", "wavtokenizer-dec"),
    }
)
"""Architectures that embed texts, draft for another model or make speech. The library computes them
as if they went on with a text."""
_LOG_ERROR = 4
_ORIGIN = re.compile(r"^(?:[a-z0-9_]+: |error loading model: )+")

Pointer = Any  # Any: an opaque pointer of ctypes

llama_cpp = library.native()


class NativeLog:
    """The first error that llama.cpp logs. Nothing is printed.

    The first error names the cause. Later ones only repeat that loading failed.
    """

    def __init__(self) -> None:
        self._error = ""
        # The library keeps only the address: this reference keeps the callback alive.
        self._callback = llama_cpp.llama_log_callback(self._keep)
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _keep(self, level: int, text: bytes, _: object) -> None:
        if level == _LOG_ERROR and not self._error:
            self._error = text.decode("utf-8", "replace").strip()[:LOG_CHARACTERS_MAX]

    def clear(self) -> None:
        """Forget the error, so that `reason` is about the next call."""
        self._error = ""

    def reason(self) -> str:
        """The error since `clear`, without the name of the function that logged it."""
        return _ORIGIN.sub("", self._error).rstrip(".") or "no reason was given"


@functools.cache
def native_log() -> NativeLog:
    """The log of the library, one per process. The first call starts the library."""
    with interrupts_held():
        log = NativeLog()
        llama_cpp.llama_backend_init()
    return log


def supports_gpu() -> bool:
    """Whether the library was built for a GPU, and found one."""
    native_log()
    return bool(llama_cpp.llama_supports_gpu_offload())


class Model:
    """Loaded weights and vocabulary. The last reference frees the native memory."""

    def __init__(
        self, path: Path, *, gpu_layers: int, extra_kernels: bool, has_weights: bool = True
    ) -> None:
        log = native_log()
        log.clear()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = extra_kernels
        params.vocab_only = not has_weights
        with interrupts_held():
            self.pointer: Pointer = llama_cpp.llama_model_load_from_file(bytes(path), params)
            if not self.pointer:
                raise ModelError(f"{path} could not be loaded by llama.cpp: {log.reason()}.")
            weakref.finalize(self, llama_cpp.llama_model_free, self.pointer)
        self._vocab: Pointer = llama_cpp.llama_model_get_vocab(self.pointer)
        self.vocabulary_count = int(llama_cpp.llama_vocab_n_tokens(self._vocab))

    @property
    def trained_len(self) -> int:
        """The longest sequence that the model was trained on."""
        return int(llama_cpp.llama_model_n_ctx_train(self.pointer))

    @property
    def is_rewindable(self) -> bool:
        """Whether its memory can be truncated to a prefix; a recurrent state cannot."""
        return not (
            llama_cpp.llama_model_is_recurrent(self.pointer)
            or llama_cpp.llama_model_is_hybrid(self.pointer)
        )

    @property
    def has_window(self) -> bool:
        """Whether layers attend to the last tokens only."""
        return int(llama_cpp.llama_model_n_swa(self.pointer)) > 0

    @property
    def is_causal_decoder(self) -> bool:
        """Whether it writes text from left to right, without an encoder."""
        return bool(
            llama_cpp.llama_model_has_decoder(self.pointer)
            and not llama_cpp.llama_model_has_encoder(self.pointer)
            and not llama_cpp.llama_model_is_diffusion(self.pointer)
            and self._architecture() not in NOT_OF_TEXT
        )

    def _architecture(self) -> str:
        buffer = ctypes.create_string_buffer(64)
        key = b"general.architecture"
        llama_cpp.llama_model_meta_val_str(self.pointer, key, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def encode(self, data: bytes, *, special: bool) -> list[int]:
        """Tokens of a text in UTF-8, with none added. The caller has bounded its length."""
        # At most one token per byte, and a few in front that some vocabularies add.
        room = len(data) + 8
        while True:
            tokens = (llama_cpp.llama_token * room)()
            count = int(
                llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, room, False, special)
            )
            if count >= 0:
                return list(tokens[:count])
            room = -count

    def vocabulary(self) -> Vocabulary:
        """Every token as bytes, and the special tokens.

        Tokens of the type `USER_DEFINED` are text, such as markers of tool calls, which a
        completion must show.
        """
        vocab, tokens = self._vocab, range(self.vocabulary_count)
        hidden = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        attributes = llama_cpp.llama_vocab_get_attr
        bos = int(llama_cpp.llama_vocab_bos(vocab))
        template = llama_cpp.llama_model_chat_template(self.pointer, None)
        return Vocabulary(
            pieces=tuple(self._pieces()),
            control=frozenset(each for each in tokens if attributes(vocab, each) & hidden),
            eos_tokens=tuple(each for each in tokens if llama_cpp.llama_vocab_is_eog(vocab, each)),
            bos_token=bos if bos >= 0 else None,
            adds_bos=bool(llama_cpp.llama_vocab_get_add_bos(vocab)),
            chat_template=template.decode("utf-8", "replace") if template else None,
        )

    def _pieces(self) -> Iterator[bytes]:
        """The bytes of every token in order; for a control token, its name."""
        buffer = ctypes.create_string_buffer(256)
        for token in range(self.vocabulary_count):
            count = self._piece(token, buffer)
            if count < 0:
                buffer = ctypes.create_string_buffer(-count)
                count = self._piece(token, buffer)
            yield buffer.raw[:count]

    def _piece(self, token: int, buffer: Pointer) -> int:
        """The number of bytes written; where the buffer is too small, minus the bytes needed."""
        vocab, size = self._vocab, len(buffer)
        return int(llama_cpp.llama_token_to_piece(vocab, token, buffer, size, 0, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings(PassShape):
    """Which file, how much memory, the rows of a pass, and how the library uses the machine."""

    model: str
    kv_tokens: int
    slots: int
    max_num_batched_tokens: int
    threads: int
    """At most. While other processes are busy, fewer are used."""
    gpu_layers: int = 0
    """Layers on a GPU; -1 means all."""
    flash_attention: bool = True
    """Faster in one pool on CPUs; slower where slots have cells of their own."""
    kv_type: str = "float16"
    """The numbers of keys and values: float16, or q8_0, which needs the fused attention."""
    slot_tokens_max: int = 0
    """Cells that each slot has for itself; 0 puts all slots into one pool of `kv_tokens`.

    Attention in one pool reads every used cell for every token. With cells of its own for each
    slot, a forward pass is several times faster, and takes slots times this much memory.
    """
    batch_invariant: bool = False
    """Whether a trial found that all tokens are computed alike in passes of this shape."""
    extra_kernels: bool = True
    """Whether weights are rearranged for faster kernels, such as AMX."""

    @property
    def slots_native(self) -> int:
        """Slots of the library: a whole number of groups."""
        return self.slots + rows_missing(self.slots, max(self.rows_group, 2))

    @property
    def is_split(self) -> bool:
        """Whether each slot has cells of its own."""
        return self.slot_tokens_max > 0

    @property
    def cells(self) -> int:
        """Tokens for which the library takes memory."""
        if not self.is_split:
            return self.kv_tokens
        return self.slots_native * (-(-self.slot_tokens_max // CELLS_UNIT) * CELLS_UNIT)


class Context:
    """The memory of all slots and the arrays of one batch. Belongs to one thread."""

    def __init__(self, model: Model, settings: LlamaCppSettings) -> None:
        slots, cells = settings.slots_native, settings.cells
        # Room for the tokens that fill up a pass.
        room = settings.max_num_batched_tokens + PASS_TOKENS_MAX
        log = native_log()
        log.clear()
        params = llama_cpp.llama_context_default_params()
        # The library needs a cell for each slot. The core uses no more than `kv_tokens`.
        params.n_ctx = max(cells, slots)
        params.n_batch = room
        params.n_ubatch = PASS_TOKENS_MAX
        params.n_seq_max = slots
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if settings.flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        if settings.kv_type == "q8_0":
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_Q8_0
        # In one pool slots share the cells of a prefix, but attention reads all cells for every
        # slot. A slot with cells of its own reads only those.
        params.kv_unified = not settings.is_split
        # Sliding-window layers keep all positions, or a slot could not be truncated.
        params.swa_full = True
        # A batch may need the logits of every position of a prompt.
        params.n_outputs_max = params.n_outputs_max_per_seq = 0
        self._model = model
        self._is_split = settings.is_split
        self._scratch = np.empty(0, np.uint8)
        with interrupts_held():
            self._pointer: Pointer = llama_cpp.llama_init_from_model(model.pointer, params)
            if not self._pointer:
                raise ModelError(
                    f"kv_tokens: llama.cpp has no room for {cells} tokens of {settings.kv_type} in "
                    f"{slots} slots ({log.reason()}); lower kv_tokens, or leave kv_cache_dtype out."
                )
            end_pool = attach_pool(library.handle(), self._pointer, settings.threads)
            # The model is an argument so that it outlives the context.
            self._free = weakref.finalize(self, _free_context, self._pointer, end_pool, model)
        self._memory: Pointer = llama_cpp.llama_get_memory(self._pointer)
        self._make_batch(room)

    def _make_batch(self, room: int) -> None:
        """Arrays of numpy. The struct for `decode` points at them."""
        self.tokens = np.zeros(room, np.int32)
        self.positions = np.zeros(room, np.int32)
        self.slots = np.zeros(room, np.int32)
        self.needs_logits = np.zeros(room, np.int8)
        self._counts = np.ones(room, np.int32)
        base = self.slots.ctypes.data
        self._slot_pointers = np.arange(base, base + 4 * room, 4, dtype=np.uintp)
        batch = llama_cpp.llama_batch()
        for name, array in (
            ("token", self.tokens),
            ("pos", self.positions),
            ("n_seq_id", self._counts),
            ("seq_id", self._slot_pointers),
            ("logits", self.needs_logits),
        ):
            kind = dict(llama_cpp.llama_batch._fields_)[name]
            setattr(batch, name, ctypes.cast(array.ctypes.data, kind))
        self._batch = batch

    def set_threads(self, count: int) -> None:
        """Use this many of its threads from the next decode on."""
        llama_cpp.llama_set_n_threads(self._pointer, count, count)

    def decode(self, count: int) -> int:
        """Compute the first `count` tokens of the arrays; the library's status, 0 when done."""
        self._batch.n_tokens = count
        return int(llama_cpp.llama_decode(self._pointer, self._batch))

    def logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The wanted rows of the last decode, in order. The next decode overwrites them."""
        pointer = llama_cpp.llama_get_logits(self._pointer)
        shape = (rows, self._model.vocabulary_count)
        return np.ctypeslib.as_array(pointer, shape=shape)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first tokens of one slot to another. Raises BackendFailed without room."""
        if not self._is_split:
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, length)
            return
        if self._model.has_window:
            # A saved copy has not what a window passed, and a shorter copy needs it. This one has
            # all cells of the slot; they are written before the next decode.
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self.truncate(target, length)
            return
        size = int(llama_cpp.llama_state_seq_get_size(self._pointer, source))
        if size > len(self._scratch):
            self._scratch = np.empty(size + size // 4, np.uint8)
        self._write(target, self._save_into(self._scratch[:size], source))
        self.truncate(target, length)

    def truncate(self, slot: int, length: int) -> None:
        """Forget positions from `length` on. Raises BackendFailed."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, slot, length, -1):
            raise BackendFailed(f"llama.cpp could not take back tokens of slot {slot}.")

    def clear(self) -> None:
        """Empty every slot."""
        llama_cpp.llama_memory_clear(self._memory, False)

    def save(self, slot: int) -> npt.NDArray[np.uint8]:
        """A copy of the slot's memory. Raises BackendFailed."""
        size = int(llama_cpp.llama_state_seq_get_size(self._pointer, slot))
        return self._save_into(np.empty(size, np.uint8), slot)

    def _save_into(self, room: npt.NDArray[np.uint8], slot: int) -> npt.NDArray[np.uint8]:
        written = llama_cpp.llama_state_seq_get_data(
            self._pointer, _bytes_at(room), len(room), slot
        )
        if not written:
            raise BackendFailed(f"llama.cpp could not save slot {slot}.")
        return room[: int(written)]

    def restore(self, slot: int, state: npt.NDArray[np.uint8], length: int) -> None:
        """Write a saved copy of `length` tokens into the slot. Raises BackendFailed."""
        self._write(slot, state)
        last = int(llama_cpp.llama_memory_seq_pos_max(self._memory, slot))
        if last != length - 1:
            raise BackendFailed(f"llama.cpp restored {last + 1} tokens of {length} in slot {slot}.")

    def packed(self, saved: npt.NDArray[np.uint8]) -> list[memoryview]:
        """A saved copy as bytes."""
        return [saved.data]

    def unpacked(self, memory: memoryview, token_count: int) -> npt.NDArray[np.uint8]:
        """The saved copy in these bytes: the library says how many tokens they are."""
        return np.frombuffer(memory, np.uint8)

    def _write(self, slot: int, state: npt.NDArray[np.uint8]) -> None:
        written = llama_cpp.llama_state_seq_set_data(
            self._pointer, _bytes_at(state), len(state), slot
        )
        if not written:
            raise BackendFailed(f"Memory has no room for the tokens copied to slot {slot}.")

    def close(self) -> None:
        """Free the memory; idempotent."""
        self._free()


def quantize(source: Path, target: Path, *, threads: int) -> None:
    """Write `source` again with its matrices as Q8_0. Raises ModelError."""
    log = native_log()
    log.clear()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    params.allow_requantize = True
    params.nthread = threads
    with interrupts_held():
        status = llama_cpp.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params))
    if status != 0:
        raise ModelError(f"{source} could not be converted to Q8_0: {log.reason()}.")


def _bytes_at(array: npt.NDArray[np.uint8]) -> Pointer:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _free_context(pointer: Pointer, end_pool: Callable[[], None] | None, _model: Model) -> None:
    llama_cpp.llama_free(pointer)
    if end_pool is not None:
        end_pool()


def _answered(payload: dict[str, Any]) -> dict[str, bool]:
    """Whether the head of a model can be loaded; without one, whether there is a GPU."""
    head = payload["head"]
    return _loads(Path(head)) if head else {"finds_gpu": supports_gpu()}


def _loads(head: Path) -> dict[str, bool]:
    """What its architecture decides. Raises ModelError, with a clause, if it cannot be loaded."""
    try:
        model = Model(head, gpu_layers=0, extra_kernels=False, has_weights=False)
    except ModelError:
        # Without the path, which is that of the head.
        raise ModelError(native_log().reason()) from None
    if not model.is_causal_decoder:
        raise ModelError("it is not a model that continues a text")
    return {"is_rewindable": model.is_rewindable}


if __name__ == "__main__":
    # The child of `asked`, which also looks at models that were not fetched yet.
    answer(_answered)
