"""How much of the time the GPU computes in steady decode, from a profile of its kernels."""

import time
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.load import running
from jitney.core.backend import Backend

BATCHES = (64, 256)
SECONDS = 0.5
SHOWN = 8


def busy(backend: Backend) -> None:
    """Some batch sizes, and the kernels that take the most time in each."""
    for batch in BATCHES:
        with running(backend) as bench:
            handles = [bench.ask(256, 400) for _ in range(batch)]
            while not (bench.ticks and bench.ticks[-1].decode_tokens == batch):
                time.sleep(0.01)
            time.sleep(0.3)
            first = len(bench.ticks)
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                time.sleep(SECONDS)
            passes = max(len(bench.ticks) - first, 1)
            for handle in handles:
                handle.cancel()
        _report(profiler, batch, passes)


def _report(profiler: profile, batch: int, passes: int) -> None:
    spent: Counter[str] = Counter()
    spans = []
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            span = event.time_range
            spans.append((span.start, span.end))
            spent[event.name[:60]] += span.end - span.start
    spans.sort()
    busy_us, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy_us += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    share = busy_us / (reached - spans[0][0])
    print(f"batch {batch}: the GPU computes {share:.3f} of the time, {passes} passes", flush=True)
    for name, microseconds in spent.most_common(SHOWN):
        print(f"  {microseconds / passes:8.0f} us a pass  {name}", flush=True)
