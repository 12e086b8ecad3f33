"""Weights in FP8 against bfloat16: that the products are right here, decodes, and prompts."""

import statistics
from dataclasses import replace

import torch

from benchmarks.gpu.load import freeze_garbage, running
from benchmarks.gpu.model import SHAPE, SIZES, make_backend
from benchmarks.gpu.parts import steady_ticks
from jitney.backends.torch.fp8 import Fp8Weight, rounded
from jitney.backends.torch.gpu_loading import check_fp8, check_gpu
from jitney.backends.torch.kernels.triton_ops import TritonOps
from jitney.core.scheduler_settings import Mix

BATCHES = (1, 32, 256)
PROMPTS, PROMPT = 24, 1000
ROWS = (1, 16, 32, 64, 65, 1024)
"""Of each tile, and two of the library."""


def fp8() -> None:
    """Both kinds of weights, one after the other, in one process."""
    device = check_gpu()
    check_fp8(device)
    print(f"largest error of a product by rows: {agreement(device)}", flush=True)
    plain = measure(device, is_fp8=False)
    small = measure(device, is_fp8=True)
    for name, before in plain.items():
        after = small[name]
        print(f"{name}: {before:.2f} ms, in FP8 {after:.2f} ms, {before / after:.2f} times as fast")


def agreement(device: torch.device) -> str:
    """The largest error of a product in FP8, over the largest number of it, by its rows."""
    weight = torch.randn((SHAPE.width, SHAPE.inner), device=device, dtype=torch.bfloat16)
    small = rounded(weight)
    assert isinstance(small, Fp8Weight), "Its sides are multiples of 16"
    ops, found = TritonOps(SHAPE, torch.bfloat16, is_invariant=False), []
    for rows in ROWS:
        x = torch.randn((rows, SHAPE.inner), device=device, dtype=torch.bfloat16)
        wanted = x.float() @ small.whole(torch.float32).T
        error = (ops.product(x, small).sum(0).float() - wanted).abs().max() / wanted.abs().max()
        found.append(f"{rows} {error.item():.4f}")
    return ", ".join(found)


def measure(device: torch.device, *, is_fp8: bool) -> dict[str, float]:
    """Milliseconds of a pass for each number of decodes, and of 1,000 tokens of prompts.

    Graphs are captured when they are wanted: these sizes only.
    """
    sizes = replace(SIZES, kv_tokens=min(SIZES.kv_tokens, 140_000), is_fp8=is_fp8)
    backend, found = make_backend(device, sizes), {}
    freeze_garbage()
    with running(backend, mix=Mix.DECODE_FIRST) as bench:
        for batch in BATCHES:
            steady = steady_ticks(bench, batch)
            found[f"{batch} decodes"] = statistics.fmean(each.tick_ms for each in steady)
        for _ in range(2):
            bench.ticks.clear()
            bench.finish([bench.ask(PROMPT, 1) for _ in range(PROMPTS)])
    large = [each for each in bench.ticks if each.prefill_tokens > PROMPT]
    prompts = min(1000 * each.forward_ms / each.prefill_tokens for each in large)
    return {**found, "1,000 prompt tokens in a large pass": prompts}
