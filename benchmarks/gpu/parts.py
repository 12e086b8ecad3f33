"""The parts of the GPU benchmark: each measures one thing through the engine, and prints it."""

import itertools
import random
import statistics
import time
from collections.abc import Sequence

from benchmarks.gpu.load import Bench, random_tokens, running
from benchmarks.gpu.model import bandwidth, floor_s
from jitney.backends.torch.gpu_loading import check_gpu
from jitney.core.backend import Backend
from jitney.core.scheduler_settings import Mix
from jitney.records import TickRecord

BATCHES = (1, 8, 32, 64, 128, 256)
CONTEXT = 384
ANSWER = 128
STALL_S = 0.035
"""The target for ticks beside the long prompt."""
SMALL_SEQS = 128
SMALL_PASS = 160
"""Where arrivals shall not be felt: beside 32 decodes, prompts get the rows of a small graph."""


def decode(backend: Backend) -> None:
    """Steady decode of some batch sizes around the context, its floor, and the line through it."""
    bytes_per_s = bandwidth(check_gpu())
    _say(f"a copy moves {bytes_per_s / 1e12:.2f} TB/s")
    _say("batch | ms a pass | tokens/s | share of the floor | GPU computes")
    found = []
    with running(backend) as bench:
        for batch in BATCHES:
            steady = steady_ticks(bench, batch)
            tick_ms = statistics.fmean(each.tick_ms for each in steady)
            forward_ms = statistics.fmean(each.forward_ms for each in steady)
            share = floor_s(batch, CONTEXT, bytes_per_s) * 1e3 / tick_ms
            found.append((batch, tick_ms))
            _say(
                f"{batch:5} | {tick_ms:9.2f} | {batch / tick_ms * 1e3:8.0f} | {share:18.3f} | "
                f"{forward_ms / tick_ms:.3f}"
            )
    slope, fixed = statistics.linear_regression(*zip(*found, strict=True))
    _say(f"T(B) = {fixed:.2f} ms + B * {slope * 1e3:.1f} us")


def together(backend: Backend) -> None:
    """256 requests of 256 in and 256 out that arrive together, as by default and with prompts as
    large as a pass may be."""
    for mix in (Mix.BOUNDED_STALL, Mix.DECODE_FIRST):
        with running(backend, mix=mix) as bench:
            requests = [bench.request(256, 256) for _ in range(256)]
            started = time.perf_counter()
            bench.finish(bench.send(requests))
            seconds = time.perf_counter() - started
        _say(f"256 of 256 in, 256 out, together, {mix}: {256 * 256 / seconds:.0f} tokens/s")


def poisson(backend: Backend, rate: float = 16.0, count: int = 240) -> None:
    """Arrivals by chance and mixed lengths, in small passes: the time between two tokens."""
    draw = random.Random(1)
    with running(backend, max_num_seqs=SMALL_SEQS, max_num_batched_tokens=SMALL_PASS) as bench:
        handles = []
        for _ in range(count):
            time.sleep(draw.expovariate(rate))
            handles.append(bench.ask(draw.randrange(32, 1024), draw.randrange(64, 512)))
        ticks = bench.ticks.copy()
        bench.finish(handles)
    gaps = sorted(gap for each, gap in gaps_ms(ticks) for _ in range(each.decode_tokens))
    half, most = statistics.median(gaps), gaps[int(0.95 * len(gaps))]
    live = statistics.fmean(each.decode_tokens for each in ticks)
    _say(
        f"{rate:g} requests/s, 32 to 1,024 in, 64 to 512 out, {live:.0f} live, passes of at most "
        f"{SMALL_PASS}: between two tokens {half:.2f} ms, p95 {most:.2f} ms "
        f"({most / half:.2f} times)"
    )


def prefix(backend: Backend, count: int = 1024, count_without: int = 256) -> None:
    """Prompts of 2,000 tokens, of which 1,500 are the same; fewer of them without reuse, where a
    thousand take a minute."""
    shared = random_tokens(7, 1500)
    for reuse, wanted in ((True, count), (False, count_without)):
        with running(backend, enable_prefix_caching=reuse) as bench:
            requests = [
                bench.request(shared + random_tokens(1000 + number, 500), 64)
                for number in range(wanted)
            ]
            started = time.perf_counter()
            bench.finish(bench.send(requests))
            seconds = time.perf_counter() - started
            computed = sum(each.prefill_tokens for each in bench.ticks)
        _say(
            f"{wanted} of 2,000 in, 1,500 shared, 64 out, {'with' if reuse else 'no'} reuse: "
            f"{computed} prompt tokens computed, {wanted * 64 / seconds:.0f} tokens/s"
        )


def stall(backend: Backend) -> None:
    """The longest wait of eight streams while a prompt of 32,000 tokens arrives."""
    with running(backend, stall_s_target=STALL_S) as bench:
        streams = [bench.ask(256, 3000) for _ in range(8)]
        while sum(each.decode_tokens for each in bench.ticks[-20:]) < 100:
            time.sleep(0.01)
        long = bench.request(32_000, 4)
        first = len(bench.ticks)
        bench.finish(bench.send([long]))
        beside = gaps_ms(bench.ticks[first:])
        for handle in streams:
            handle.cancel()
    worst, gap = max(beside, key=lambda each: each[1])
    prefills = [each.prefill_tokens for each, _ in beside if each.prefill_tokens]
    _say(
        f"eight streams beside a prompt of 32,000: worst gap {gap:.1f} ms (pass of "
        f"{worst.prefill_tokens} + {worst.decode_tokens}: {worst.forward_ms:.1f} ms on the GPU); "
        f"{len(prefills)} passes with {min(prefills)} to {max(prefills)} of its tokens"
    )


def steady_ticks(bench: Bench, batch: int, rounds: int = 2) -> list[TickRecord]:
    """Passes of so many decodes around the context, the last time."""
    for _ in range(rounds):
        bench.ticks.clear()
        bench.finish([bench.ask(CONTEXT - ANSWER // 2, ANSWER) for _ in range(batch)])
    steady = [
        each for each in bench.ticks if each.decode_tokens == batch and not each.prefill_tokens
    ]
    # The first ones come between prompts.
    return steady[3:]


def gaps_ms(ticks: Sequence[TickRecord]) -> list[tuple[TickRecord, float]]:
    """Each pass with decodes, and the time since the one before it ended."""
    pairs = itertools.pairwise(ticks)
    return [(each, (each.at - last.at) * 1e3) for last, each in pairs if each.decode_tokens]


def _say(text: str) -> None:
    print(text, flush=True)
