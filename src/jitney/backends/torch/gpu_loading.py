"""Loads a model onto a GPU: `load_on_gpu`. What would not work there is refused with a sentence.

Called while a backend is built. Memory that the user gave no number for is what is free beside the
weights and the largest pass.

Tests: tests/unit/backends/torch/kernels/test_gpu_loading.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.backend import DTYPES, TorchSettings, read_text_side
from jitney.backends.torch.gpu_backend import GpuBackend, GpuModel
from jitney.backends.torch.graphs import logit_rows
from jitney.backends.torch.kernels.span_attention import SPAN_SPLIT
from jitney.backends.torch.kernels.triton_ops import TritonOps
from jitney.backends.torch.kind import GPU_BLOCK_TOKENS
from jitney.backends.torch.load_model import Placement, StoredTensors, load_model, tensors_of
from jitney.core.backend import Segment, Traits, Vocabulary
from jitney.errors import ConfigError, NoRoom
from jitney.tokenizers.tokenizer import encode_all

CAPABILITY_MIN = (8, 0)
"""The first GPUs with bfloat16, and with the copies that the kernels are made of."""

FP8_CAPABILITY_MIN = (8, 9)
"""The first GPUs with instructions for FP8."""

FIXED_BYTES = 1 << 30
"""For the library itself and its graphs."""


@dataclass(frozen=True, slots=True)
class TextSide:
    """What is known of the texts of a model."""

    vocabulary: Vocabulary
    encode: Callable[[Sequence[Segment]], list[int]]


def make_gpu_backend(settings: TorchSettings) -> GpuBackend:
    """The backend on the GPU, with its model loaded. Raises a SetupError."""
    device = check_gpu()
    for name, value in (
        ("quantization", settings.quantization),
        ("kv_cache_dtype", settings.kv_dtype),
    ):
        if value == "fp8":
            check_fp8(device, name)
    backend = GpuBackend(load_on_gpu(settings, device))
    backend.capture_sizes()
    return backend


def check_gpu() -> torch.device:
    """The GPU. Raises NoRoom where none can be used: the next start may find another driver, or
    another of several GPUs, so a trial must not remember it."""
    if not torch.cuda.is_available():
        made_for = torch.version.cuda
        why = (
            f"this PyTorch is made for CUDA {made_for} and finds no GPU or no driver that is new "
            "enough; `nvidia-smi` shows the driver"
            if made_for
            else "this PyTorch is made for the CPU; install one for CUDA"
        )
        raise NoRoom(f"There is no usable NVIDIA GPU: {why}.")
    device = torch.device("cuda", torch.cuda.current_device())
    if torch.cuda.get_device_capability(device) < CAPABILITY_MIN:
        raise NoRoom(f"{_named(device)}, and the torch backend needs 8.0 or newer.")
    return device


def check_fp8(device: torch.device, name: str) -> None:
    """Raise ConfigError where the GPU does not know FP8, which this setting asks for."""
    if torch.cuda.get_device_capability(device) < FP8_CAPABILITY_MIN:
        raise ConfigError(
            f"{name} is fp8, and {_named(device)}, and FP8 needs 8.9 or newer; leave it out."
        )


def _named(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}"


def load_on_gpu(sizes: TorchSettings, device: torch.device) -> GpuModel:
    """The model of these settings, on the GPU. Raises a SetupError."""
    path = Path(sizes.model)
    tokenizer, shape = read_text_side(path)
    text_side = TextSide(tokenizer.vocabulary, partial(encode_all, tokenizer))
    return place_on_gpu(tensors_of(path, shape), shape, text_side, sizes, device)


def place_on_gpu(
    tensors: StoredTensors,
    shape: Architecture,
    texts: TextSide,
    sizes: TorchSettings,
    device: torch.device,
) -> GpuModel:
    """A model of these weights, and memory for it. Raises NoRoom where it does not fit."""
    dtype = DTYPES[sizes.dtype]
    kv_dtype = DTYPES[sizes.kv_dtype]
    token_bytes = shape.kv_values_per_token * kv_dtype.itemsize
    kv_tokens = sizes.kv_tokens
    if device.type == "cuda":
        kv_tokens = _checked_tokens(shape, sizes, token_bytes, device)
    blocks = kv_tokens // GPU_BLOCK_TOKENS
    length_max = min(shape.length_max, sizes.model_len_max or shape.length_max)
    slot_tokens_max = min(length_max, blocks * GPU_BLOCK_TOKENS)
    place = Placement(
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        # One more, for the rows that fill up a pass.
        blocks=blocks + 1,
        block_tokens=GPU_BLOCK_TOKENS,
        positions=slot_tokens_max,
        quantization=sizes.quantization,
    )
    traits = Traits(
        name="torch",
        slots_max=sizes.slots,
        kv_tokens=blocks * GPU_BLOCK_TOKENS,
        model_len_max=shape.length_max,
        block_tokens=GPU_BLOCK_TOKENS,
        kv_bytes_per_token=token_bytes,
        batch_invariant=sizes.batch_invariant,
        decodes_differ=True,
    )
    return GpuModel(
        model=load_model(tensors, shape, place),
        ops=TritonOps(shape, dtype, sizes.batch_invariant),
        vocabulary=texts.vocabulary,
        traits=traits,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        sequences_max=sizes.sequences_max,
        slot_tokens_max=slot_tokens_max,
        encode=texts.encode,
    )


def _checked_tokens(
    shape: Architecture, sizes: TorchSettings, token_bytes: int, device: torch.device
) -> int:
    """The tokens that were asked for, or all that fit. Raises NoRoom."""
    free = _free_tokens(shape, sizes, token_bytes, device)
    if sizes.kv_tokens > free:
        raise NoRoom(
            f"kv_tokens, or memory_limit, asks for {sizes.kv_tokens} tokens, and the GPU holds "
            f"{free} beside the weights and a pass; lower it, or leave it out."
        )
    return sizes.kv_tokens or free


def _free_tokens(
    shape: Architecture, sizes: TorchSettings, token_bytes: int, device: torch.device
) -> int:
    """The tokens that fit beside the weights and the largest pass. Raises NoRoom."""
    free, total = torch.cuda.mem_get_info(device)
    number_bytes = DTYPES[sizes.dtype].itemsize
    weights = shape.weight_bytes(number_bytes, 1 if sizes.quantization else number_bytes)
    # The widest numbers of a row, twice.
    largest = sizes.max_num_batched_tokens * 8 * (3 * shape.inner + 4 * shape.width)
    if sizes.quantization == "int8":
        # The largest matrix as the library multiplies it, in graphs and beside them.
        largest += 2 * number_bytes * 2 * shape.inner * shape.width
    # Rows of logits, those of them that the host wants, and these in float32.
    largest += logit_rows(sizes.sequences_max) * (2 * number_bytes + 4) * shape.vocabulary
    usable: int = total * sizes.memory_percent // 100 - (total - free)
    left = usable - weights - largest - FIXED_BYTES
    tokens: int = left // token_bytes
    longest = min(sizes.model_len_max or shape.length_max, tokens)
    if longest > SPAN_SPLIT:
        # Each split of the longest sequence takes memory, and no sequence is longer than `tokens`.
        split_bytes = sizes.max_num_batched_tokens * shape.heads * (shape.head + 1) * 4
        longest = min(longest, left // (token_bytes + split_bytes // SPAN_SPLIT))
        largest += -(-longest // SPAN_SPLIT) * split_bytes
        left = usable - weights - largest - FIXED_BYTES
        tokens = max(left // token_bytes, SPAN_SPLIT)
    if tokens < max(sizes.model_len_max, GPU_BLOCK_TOKENS):
        raise NoRoom(
            f"The GPU has {free / 1e9:.1f} GB free, of which {usable / 1e9:.1f} may be used. The "
            f"weights take {weights / 1e9:.1f} and a pass {(largest + FIXED_BYTES) / 1e9:.1f}; "
            f"what is left holds {max(tokens, 0)} tokens. Take a smaller model, a smaller "
            "max_model_len or max_num_seqs, a larger gpu_memory_utilization, or a GGUF and "
            "`--backend llamacpp`."
        )
    return tokens
