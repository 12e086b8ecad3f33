"""`python -m benchmarks gpu [PART ...]`: how much of a GPU's bandwidth becomes tokens.

Everything goes through the engine. The model has the shape of Llama 3 8B and random weights; the
answers are no text, and all are as long as was asked. Needs the core, torch and triton only, but
for the part `http`, which runs alone and needs what the server needs. `small_types` runs
alone too.
"""

import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.gpu.busy import busy
from benchmarks.gpu.load import freeze_garbage
from benchmarks.gpu.model import make_backend
from benchmarks.gpu.parts import decode, poisson, prefix, stall, together
from benchmarks.gpu.small_types import small_types
from jitney.backends.torch.gpu_loading import check_gpu
from jitney.core.backend import Backend

PARTS: dict[str, Callable[[Backend], None]] = {
    "decode": decode,
    "together": together,
    "stall": stall,
    "poisson": poisson,
    "prefix": prefix,
    "busy": busy,
}


def main(names: Sequence[str] = ()) -> None:
    """Measure and print these parts, or all."""
    if list(names) == ["http"]:
        from benchmarks.gpu.http import http

        http()
        return
    if list(names) == ["small_types"]:
        small_types()
        return
    unknown = set(names) - set(PARTS)
    if unknown:
        raise SystemExit(
            f"There is no part {', '.join(unknown)}; there are {', '.join(PARTS)} and, alone, "
            "small_types and http."
        )
    device = check_gpu()
    started = time.perf_counter()
    backend = make_backend(device)
    made = time.perf_counter()
    backend.capture_sizes()
    print(
        f"{torch.cuda.get_device_name(device)}: weights made in {made - started:.1f} s, graphs in "
        f"{time.perf_counter() - made:.1f} s",
        flush=True,
    )
    freeze_garbage()
    for name in names or PARTS:
        PARTS[name](backend)
