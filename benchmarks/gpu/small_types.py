"""Numbers of one byte against bfloat16: weights in FP8 and in int8, keys and values in FP8. That
the products are right here, decodes, and prompts."""

import statistics
from dataclasses import replace
from typing import Any  # Any: fields of the sizes

import torch

from benchmarks.gpu.load import freeze_garbage, running
from benchmarks.gpu.model import SHAPE, SIZES, make_backend
from benchmarks.gpu.parts import steady_ticks
from jitney.backends.torch.gpu_loading import check_fp8, check_gpu
from jitney.backends.torch.kernels.triton_ops import TritonOps
from jitney.backends.torch.scaled_weight import NUMBERS, ScaledWeight, scaled
from jitney.core.scheduler_settings import Mix

BATCHES = (1, 32, 256)
PROMPTS, PROMPT = 24, 1000
ROWS = (1, 16, 32, 64, 65, 1024)
"""Of each tile, and two of the library."""
KINDS: dict[str, dict[str, Any]] = {
    "weights in FP8": {"quantization": "fp8"},
    "weights in int8": {"quantization": "int8"},
    "keys and values in FP8": {"kv_dtype": "fp8"},
}


def small_types() -> None:
    """All kinds, one after the other, in one process."""
    device = check_gpu()
    check_fp8(device, "quantization")
    for quantization in NUMBERS:
        print(f"largest error of a product in {quantization}: {agreement(device, quantization)}")
    plain = measure(device)
    for kind, changes in KINDS.items():
        for name, after in measure(device, **changes).items():
            before = plain[name]
            times = f"{before:.2f} ms, {after:.2f} ms, {before / after:.2f} times as fast"
            print(f"{name}, {kind}: {times}", flush=True)


def agreement(device: torch.device, quantization: str) -> str:
    """The largest error of a product, over the largest number of it, by its rows."""
    weight = torch.randn((SHAPE.width, SHAPE.inner), device=device, dtype=torch.bfloat16)
    small = scaled(weight, NUMBERS[quantization])
    assert isinstance(small, ScaledWeight), "Its sides are multiples of 16"
    ops, found = TritonOps(SHAPE, torch.bfloat16, is_invariant=False), []
    for rows in ROWS:
        x = torch.randn((rows, SHAPE.inner), device=device, dtype=torch.bfloat16)
        wanted = x.float() @ small.whole(torch.float32).T
        error = (ops.product(x, small).sum(0).float() - wanted).abs().max() / wanted.abs().max()
        found.append(f"{rows} {error.item():.4f}")
    return ", ".join(found)


def measure(device: torch.device, **changes: Any) -> dict[str, float]:
    """Milliseconds of a pass for each number of decodes, and of 1,000 tokens of prompts.

    Graphs are captured when they are wanted: these sizes only.
    """
    sizes = replace(SIZES, kv_tokens=min(SIZES.kv_tokens, 140_000), **changes)
    backend, found = make_backend(device, sizes), {}
    freeze_garbage()
    with running(backend, mix=Mix.DECODE_FIRST) as bench:
        for batch in BATCHES:
            # A graph is captured on the way: the median does not see it.
            steady = steady_ticks(bench, batch, rounds=1)
            found[f"{batch} decodes"] = statistics.median(each.tick_ms for each in steady)
        bench.ticks.clear()
        bench.finish([bench.ask(PROMPT, 1) for _ in range(PROMPTS)])
    large = [each for each in bench.ticks if each.prefill_tokens > PROMPT]
    prompts = min(1000 * each.forward_ms / each.prefill_tokens for each in large)
    return {**found, "1,000 prompt tokens in a large pass": prompts}
