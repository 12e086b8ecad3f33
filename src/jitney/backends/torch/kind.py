"""Torch as a kind of backend: which models, and its values for given settings.

See `jitney.backends.kind`. This module does not load the library. It is chosen by itself only where
there is an NVIDIA GPU and a library made for it; a user who names it gets it anywhere.
"""

import importlib.util
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitney.backends.kind import (
    SAME_TEXTS,
    Kind,
    Library,
    Needs,
    Values,
    threads_of,
    version_of,
)
from jitney.backends.machine.free_memory import available_bytes, free_beside, refuse_too_large
from jitney.backends.machine.gpu import describe_gpu, gpu_bytes
from jitney.backends.machine.processor import read_processor, text_of
from jitney.backends.shared.sizing import TokenMemory, size_paged
from jitney.backends.torch import checkpoint
from jitney.backends.torch.architecture import FAMILIES, Architecture
from jitney.backends.trials.trial import alike_values, try_backend
from jitney.config import Settings
from jitney.errors import ConfigError, NoRoom
from jitney.models.gguf_vocabulary import read_vocabulary

LIBRARIES = ("torch", "safetensors", "tokenizers")
DISTRIBUTIONS = LIBRARIES
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""The driver of NVIDIA makes one of these files on Linux, the other under Windows (WSL 2)."""
BLOCK_TOKENS = 32
GPU_BLOCK_TOKENS = 64
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
SHAPE_FACTS = ("model", "threads", "dtype", "kv_dtype", "quantization")
"""The values that decide in which shapes all tokens are computed alike."""
SHAPES = tuple(
    {"decode_tile": decodes, "span_tile": spans, "decodes_differ": True}
    for decodes, spans in ((16, 128), (32, 128), (64, 64))
)
"""Rows that products take at a time. On processors with matrix units 16 rows cost what one does,
and 128 have nearly the whole speed."""

_log = logging.getLogger("jitney")

_CUDA = re.compile(r"^cuda[^=\n]*= *'([0-9.]+)'", re.MULTILINE)


def installed() -> Library | None:
    """All of its packages, or nothing."""
    if any(importlib.util.find_spec(name) is None for name in LIBRARIES):
        return None
    cuda = cuda_version()
    made_for = f"for CUDA {cuda}" if cuda else "for the CPU"
    return Library(DISTRIBUTIONS, f"{version_of('torch')} {made_for}")


def cuda_version() -> str | None:
    """The version of CUDA that the library was made for; None where it was made for the CPU."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    written = _CUDA.search(text_of(Path(found.origin).with_name("version.py")))
    return None if written is None else written[1]


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU, and a library made for it."""
    return any(path.exists() for path in DRIVERS) and cuda_version() is not None


def chosen_dtypes(settings: Settings) -> dict[str, str]:
    """The types of numbers to compute with, and to keep keys and values in."""
    dtype: str = settings.dtype
    if dtype == "auto":
        is_half = has_gpu() or read_processor().has_bfloat16
        dtype = "bfloat16" if is_half else "float32"
    kv_dtype: str = settings.kv_cache_dtype
    if kv_dtype == "auto":
        kv_dtype = dtype
    return {"dtype": dtype, "kv_dtype": kv_dtype}


def failure(settings: Settings) -> str | None:
    """Why it cannot run models here, as a clause; None when it ran one."""
    tried: dict[str, Any] = {**chosen_dtypes(settings), "threads": min(threads_of(settings), 2)}
    if has_gpu():
        tried["device"] = "cuda"
    return try_backend(KIND.name, tried, DISTRIBUTIONS, settings.cache_dir).failure


def numbers(settings: Settings) -> str:
    """The types of numbers that it would compute with, in words: what `auto` means here."""
    chosen, threads = chosen_dtypes(settings), threads_of(settings)
    weights = f", weights of layers in {settings.quantization}" if settings.quantization else ""
    dtype, kept = f"{chosen['dtype']}{weights}", f"keys and values in {chosen['kv_dtype']}"
    if has_gpu():
        return f"{dtype}, {kept}, with Triton's kernels, on {describe_gpu()}"
    words = f"{dtype}, {kept}, on the CPU"
    return f"{words}, {threads} threads" if threads > 1 else f"{words}, one thread"


def needs(source: Path, settings: Settings) -> Needs:
    """The memory that the model takes. Raises a SetupError."""
    shape, dtypes = _shape(source, settings), chosen_dtypes(settings)
    weights_bytes, token_bytes = _weights_bytes(shape, settings), _token_bytes(shape, dtypes)
    kv_tokens = None
    if has_gpu():
        _refuse_large(source, weights_bytes, settings)
    else:
        refuse_too_large(weights_bytes)
        available = available_bytes()
        free_bytes = None if available is None else available - weights_bytes
        memory = TokenMemory(token_bytes=token_bytes, unit=BLOCK_TOKENS, free_bytes=free_bytes)
        kv_tokens = size_paged(settings, shape.length_max, memory).kv_tokens
    return Needs(
        weights_bytes=weights_bytes,
        token_bytes=token_bytes,
        model_len_max=shape.length_max,
        kv_tokens=kv_tokens,
    )


def _refuse_large(source: Path, weights_bytes: int, settings: Settings) -> None:
    """Raise NoRoom for weights that no GPU here could hold, whatever else is on it."""
    found = gpu_bytes()
    if found is None or weights_bytes <= found * settings.gpu_memory_utilization:
        return
    advice = "--quantization int8" if source.is_dir() else "--backend llamacpp"
    raise NoRoom(
        f"It has {weights_bytes / 1e9:.1f} GB of weights as they are here, and the GPU has "
        f"{found / 1e9:.1f} GB, of which {settings.gpu_memory_utilization:.0%} may be used; take a "
        f"smaller model, or {advice}."
    )


def _shape(source: Path, settings: Settings) -> Architecture:
    tokens = 1 if source.is_dir() else len(read_vocabulary(source).tokens)
    shape = checkpoint.architecture_at(source, tokens)
    if settings.dtype == "float16" and (shape.family == "gemma3" or settings.quantization):
        raise ConfigError(
            "dtype is float16, whose numbers end at 65504, and Gemma 3, or sums of weights of one "
            "byte, have larger ones; leave dtype out."
        )
    return shape


def _weights_bytes(shape: Architecture, settings: Settings) -> int:
    number_bytes = BYTES[chosen_dtypes(settings)["dtype"]]
    return shape.weight_bytes(number_bytes, 1 if settings.quantization else number_bytes)


def _token_bytes(shape: Architecture, dtypes: dict[str, str]) -> int:
    return shape.kv_values_per_token * BYTES[dtypes["kv_dtype"]]


def values(settings: Settings, source: Path | None) -> Values:
    """The values for `TorchSettings`. Raises a SetupError."""
    assert source is not None, "This backend takes a model"
    shape, dtypes = _shape(source, settings), chosen_dtypes(settings)
    if has_gpu():
        return _gpu_values(settings, source, shape, dtypes)
    memory = TokenMemory(
        token_bytes=_token_bytes(shape, dtypes),
        unit=BLOCK_TOKENS,
        free_bytes=free_beside(source, _weights_bytes(shape, settings)),
    )
    sizes = size_paged(settings, shape.length_max, memory)
    found: Values = {
        "model": str(source),
        "kv_tokens": sizes.kv_tokens,
        "slots": sizes.slots,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "threads": threads_of(settings),
        "block_tokens": BLOCK_TOKENS,
        "quantization": settings.quantization or "",
        **dtypes,
    }
    return found | alike_values(KIND, settings, found, SHAPES, SHAPE_FACTS)


def _gpu_values(
    settings: Settings, source: Path, shape: Architecture, dtypes: dict[str, str]
) -> Values:
    """The values on a GPU, whose free memory only the backend sees. Raises a SetupError."""
    if dtypes["kv_dtype"] not in (dtypes["dtype"], "fp8"):
        raise ConfigError(
            f"kv_cache_dtype is {dtypes['kv_dtype']} and dtype is {dtypes['dtype']}: on a GPU they "
            "are the same, or kv_cache_dtype is fp8; leave it out."
        )
    token_bytes = _token_bytes(shape, dtypes)
    memory = TokenMemory(token_bytes=token_bytes, unit=GPU_BLOCK_TOKENS, free_bytes=None)
    is_given = settings.kv_tokens is not None or settings.memory_limit is not None
    sizes = size_paged(settings, shape.length_max, memory)
    _log.info(
        "Loading the model onto the GPU; kernels are compiled once, which takes half a minute"
    )
    if settings.batch_invariant == "auto":
        KIND.report_differences("auto", "on a GPU equal texts take --batch-invariant on, and time")
    return {
        "model": str(source),
        "kv_tokens": sizes.kv_tokens if is_given else 0,
        "slots": sizes.slots,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "threads": threads_of(settings),
        "device": "cuda",
        "max_num_seqs": settings.max_num_seqs,
        "memory_percent": round(100 * settings.gpu_memory_utilization),
        "model_len_max": settings.max_model_len or 0,
        "batch_invariant": settings.batch_invariant == "on",
        "quantization": settings.quantization or "",
        **dtypes,
    }


def trial_values(model: Path, folder: Path, numbers: Mapping[str, Any]) -> Values:
    """The values to run the tiny model, which needs no conversion."""
    plain: Values = {"dtype": "float32", "kv_dtype": "float32", "threads": 2}
    # It must also pass beside a server that has its share of the GPU.
    plain["memory_percent"] = 100
    return {"model": str(model), **plain, **numbers}


KIND = Kind(
    name="torch",
    title="PyTorch",
    classes=("TorchSettings", "make_backend"),
    models="folders of the hub with safetensors, and GGUF files, of the architectures "
    f"{', '.join(FAMILIES)}",
    runs_on="an NVIDIA GPU, where it is preferred; a CPU where it is named",
    memory=f"blocks of {BLOCK_TOKENS} tokens, on a GPU of {GPU_BLOCK_TOKENS}; "
    "equal beginnings share theirs",
    block_tokens=BLOCK_TOKENS,
    texts=f"{SAME_TEXTS} (--batch-invariant)",
    # On a CPU it is the slowest.
    is_automatic=lambda: has_gpu(),
    extra="torch",
    libraries=LIBRARIES,
    library=installed,
    advice="the extra `torch` of jitney installs it",
    own_settings={
        "dtype": "PyTorch has the choice",
        "kv_cache_dtype": "PyTorch has the choice",
        "quantization": "PyTorch has the choice",
        "gpu_memory_utilization": "PyTorch runs on a GPU",
    },
    own_values={"kv_cache_dtype": ("auto", *BYTES)},
    failure=failure,
    refusal=checkpoint.refusal,
    needs=needs,
    values=values,
    trial_values=trial_values,
    numbers=numbers,
)
