"""llama.cpp's C interface as jitney uses it: types, functions, and a check that they fit.

Written for the interface of version 0.5. `load` opens the libraries of a folder; any thread, once
per process. A library with another layout of its structures is refused before it gets a model: its
default values are not where this file expects them.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from jitney.errors import MissingDependency

INTERFACE = "0.5"

_StructFields = list[tuple[str, Any]]
_GUARD: tuple[str, Any] = ("guard", ctypes.c_uint8 * 64)
"""Room after a structure: where the library's structure is larger, it overwrites only this."""


def _each(kind: Any, *names: str) -> _StructFields:
    """Fields of one type, one after the other."""
    return [(name, kind) for name in names]


class ModelParams(ctypes.Structure):
    """How a model is loaded."""

    _fields_: ClassVar[_StructFields] = [
        *_each(c_void_p, "devices", "tensor_buft_overrides"),
        *_each(c_int32, "n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu"),
        *_each(c_void_p, "tensor_split", "progress_callback", "progress_callback_user_data"),
        *_each(c_void_p, "kv_overrides"),
        *_each(c_bool, "vocab_only", "check_tensors", "use_extra_bufts", "no_host", "no_alloc"),
        *_each(c_bool, "load_mtp"),
        _GUARD,
    ]


class ContextParams(ctypes.Structure):
    """How large a context is, and how it computes."""

    _fields_: ClassVar[_StructFields] = [
        *_each(c_uint32, "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq"),
        *_each(c_uint32, "n_outputs_max", "n_outputs_max_per_seq"),
        *_each(c_int32, "n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type"),
        *_each(c_int32, "pooling_type", "attention_type", "flash_attn_type"),
        *_each(c_float, "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"),
        *_each(c_float, "yarn_beta_fast", "yarn_beta_slow"),
        *_each(c_uint32, "yarn_orig_ctx"),
        *_each(c_float, "defrag_thold"),
        *_each(c_void_p, "cb_eval", "cb_eval_user_data"),
        *_each(c_int32, "type_k", "type_v"),
        *_each(c_void_p, "abort_callback", "abort_callback_data"),
        *_each(c_bool, "embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full"),
        *_each(c_bool, "kv_unified"),
        *_each(c_void_p, "samplers"),
        *_each(c_size_t, "n_samplers"),
        *_each(c_void_p, "ctx_other"),
        _GUARD,
    ]


class QuantizeParams(ctypes.Structure):
    """How a model is written again."""

    _fields_: ClassVar[_StructFields] = [
        *_each(c_int32, "nthread", "ftype", "output_tensor_type", "token_embedding_type"),
        *_each(c_bool, "allow_requantize", "quantize_output_tensor", "only_copy", "pure"),
        *_each(c_bool, "keep_split", "dry_run"),
        *_each(c_void_p, "imatrix", "kv_overrides", "tt_overrides", "prune_layers"),
        *_each(c_size_t, "max_buf_size"),
        _GUARD,
    ]


class LlamaBatch(ctypes.Structure):
    """The tokens of one decode."""

    _fields_: ClassVar[_StructFields] = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)

_Prototype = tuple[Any, tuple[Any, ...]]
_OF_MODEL: Mapping[str, Any] = {
    **dict.fromkeys(("has_decoder", "has_encoder"), c_bool),
    **dict.fromkeys(("is_diffusion", "is_hybrid", "is_recurrent"), c_bool),
    **dict.fromkeys(("n_ctx_train", "n_swa"), c_int32),
    "get_vocab": c_void_p,
    "free": None,
}
"""What is asked of a model alone, by the end of the function's name."""

FUNCTIONS: Mapping[str, _Prototype] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (LogCallback, c_void_p)),
    "llama_supports_gpu_offload": (c_bool, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_quantize_default_params": (QuantizeParams, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_quantize": (c_uint32, (c_char_p, c_char_p, POINTER(QuantizeParams))),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_free": (None, (c_void_p,)),
    **{f"llama_model_{name}": (kind, (c_void_p,)) for name, kind in _OF_MODEL.items()},
    "llama_model_chat_template": (c_char_p, (c_void_p, c_char_p)),
    "llama_model_meta_val_str": (c_int32, (c_void_p, c_char_p, c_char_p, c_size_t)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_bos": (c_int32, (c_void_p,)),
    "llama_vocab_get_add_bos": (c_bool, (c_void_p,)),
    "llama_vocab_get_attr": (ctypes.c_int, (c_void_p, c_int32)),
    "llama_vocab_is_eog": (c_bool, (c_void_p, c_int32)),
    "llama_tokenize": (
        c_int32,
        (c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
    ),
    "llama_token_to_piece": (
        c_int32,
        (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool),
    ),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_decode": (c_int32, (c_void_p, LlamaBatch)),
    "llama_get_logits": (POINTER(c_float), (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_clear": (None, (c_void_p, c_bool)),
    "llama_memory_seq_cp": (None, (c_void_p, *(c_int32,) * 4)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, *(c_int32,) * 3)),
    "llama_memory_seq_pos_max": (c_int32, (c_void_p, c_int32)),
    "llama_state_seq_get_size": (c_size_t, (c_void_p, c_int32)),
    "llama_state_seq_get_data": (c_size_t, (c_void_p, POINTER(ctypes.c_uint8), c_size_t, c_int32)),
    "llama_state_seq_set_data": (c_size_t, (c_void_p, POINTER(ctypes.c_uint8), c_size_t, c_int32)),
}
"""What each function gives, and what it takes."""

NAMES: Mapping[str, Any] = {
    "llama_batch": LlamaBatch,
    "llama_token": c_int32,
    "llama_log_callback": LogCallback,
    "LLAMA_FLASH_ATTN_TYPE_DISABLED": 0,
    "LLAMA_FLASH_ATTN_TYPE_ENABLED": 1,
    "LLAMA_FTYPE_MOSTLY_Q8_0": 7,
    "GGML_TYPE_Q8_0": 8,
    "LLAMA_TOKEN_ATTR_UNKNOWN": 1 << 0,
    "LLAMA_TOKEN_ATTR_CONTROL": 1 << 3,
}
"""Types and constants by the names that llama-cpp-python has for them."""

DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama_model_default_params": {
        "devices": None,
        "split_mode": 1,
        "main_gpu": 0,
        "kv_overrides": None,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_alloc": False,
    },
    "llama_context_default_params": {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_outputs_max": 0,
        "rope_scaling_type": -1,
        "flash_attn_type": -1,
        "yarn_ext_factor": -1.0,
        "defrag_thold": -1.0,
        "cb_eval": None,
        "type_k": 1,
        "type_v": 1,
        "embeddings": False,
        "offload_kqv": True,
        "swa_full": True,
        "kv_unified": False,
        "samplers": None,
        "n_samplers": 0,
        "ctx_other": None,
    },
    "llama_model_quantize_default_params": {
        "nthread": 0,
        "allow_requantize": False,
        "quantize_output_tensor": True,
        "only_copy": False,
        "imatrix": None,
        "prune_layers": None,
    },
}
"""The library's default values."""

_AGAIN = "`jitney backends --add llamacpp` installs it again"


def load(folder: Path) -> SimpleNamespace:
    """The functions of the libraries in a folder, by name. Raises MissingDependency."""
    try:
        library = ctypes.CDLL(str(_only(folder, "libllama")))
        ggml = ctypes.CDLL(str(_only(folder, "libggml.")))
        functions = {name: getattr(library, name) for name in FUNCTIONS}
        load_kernels = ggml.ggml_backend_load_all_from_path
    except (OSError, AttributeError) as error:
        raise MissingDependency(
            f"The llama.cpp in {folder} cannot be loaded ({error}): {_AGAIN}."
        ) from error
    for name, (gives, takes) in FUNCTIONS.items():
        functions[name].restype, functions[name].argtypes = gives, takes
    native = SimpleNamespace(**functions, **NAMES, handle=library)
    check_layout(native)
    load_kernels.argtypes = (c_char_p,)

    def start() -> None:
        # Kernels for each level of the architecture are beside the library, which takes the best.
        load_kernels(bytes(folder))
        functions["llama_backend_init"]()

    native.llama_backend_init = start
    return native


def check_layout(native: Any) -> None:
    """Raise MissingDependency where the library has another layout of structures."""
    for function, expected in DEFAULTS.items():
        params = getattr(native, function)()
        found = {name: getattr(params, name) for name in expected}
        wrong = sorted(name for name in expected if found[name] != expected[name])
        if wrong:
            raise MissingDependency(
                f"This llama.cpp has another interface than {INTERFACE}, which jitney was made for "
                f"({function}: {', '.join(wrong)}): {_AGAIN}."
            )


def _only(folder: Path, stem: str) -> Path:
    """The library with this beginning of its name, of any version."""
    for path in sorted(folder.glob(f"{stem}*")):
        if path.suffix in (".so", ".dylib") and not path.name.startswith("libllama-common"):
            return path
    raise OSError(f"there is no {stem}* in it")
