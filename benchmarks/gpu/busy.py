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
PAUSE_US = 20.0
"""Between two kernels of a graph there is less; more is a wait for the host."""


def busy(backend: Backend) -> None:
    """Some batch sizes, and the kernels that take the most time in each."""
    # The first profile of a process takes seconds to begin, and all would have their answers.
    with profile(activities=[ProfilerActivity.CUDA]):
        pass
    for batch in BATCHES:
        with running(backend) as bench:
            handles = [bench.ask(256, 400) for _ in range(batch)]
            while not (bench.ticks and bench.ticks[-1].decode_tokens == batch):
                time.sleep(0.01)
            time.sleep(0.3)
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                time.sleep(SECONDS)
            for handle in handles:
                handle.cancel()
        _report(profiler, batch)


def _report(profiler: profile, batch: int) -> None:
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    spans = []
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            span, name = event.time_range, event.name[:60]
            spans.append((span.start, span.end))
            spent[name] += span.end - span.start
            calls[name] += 1
    if not spans:
        print(f"batch {batch}: the profiler saw no kernels", flush=True)
        return
    spans.sort()
    computing_us, waiting_us, reached = 0.0, 0.0, spans[0][0]
    for start, end in spans:
        waiting_us += max(start - reached, 0.0) if start - reached > PAUSE_US else 0.0
        computing_us += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole_us, passes = reached - spans[0][0], max(calls["_best_of_row"], 1)
    print(
        f"batch {batch}: kernels run {computing_us / whole_us:.3f} of the time, the GPU waits for "
        f"the host {waiting_us / whole_us:.3f}; a pass of {whole_us / passes / 1e3:.2f} ms has",
        flush=True,
    )
    for name, microseconds in spent.most_common(SHOWN):
        print(f"  {microseconds / passes:8.0f} us  {name}", flush=True)
