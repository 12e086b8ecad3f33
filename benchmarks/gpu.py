"""`python -m benchmarks gpu`: how much of a GPU's bandwidth becomes tokens, through the engine.

The floor of a pass is the time to read all weights, and the keys and values of its sequences, once,
at the speed of a copy on this device. The model has the shape of Llama 3 8B and random weights; the
answers are no text, and all are as long as was asked. Needs the core, torch and triton only.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.gpu_backend import GpuBackend
from jitney.backends.torch.gpu_loading import GpuSizes, TextSide, check_gpu, place_on_gpu
from jitney.core.backend import Vocabulary
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.records import Record, TickRecord

SHAPE = Architecture(
    family="llama", layers=32, width=4096, heads=32, heads_kv=8, head=128, inner=14_336,
    vocabulary=128_256, length_max=40_000, epsilon=1e-5, attention_scale=128**-0.5,
)  # fmt: skip
SIZES = GpuSizes(slots=272, kv_tokens=240_000, max_num_batched_tokens=8192, model_len_max=40_000)
BATCHES = (1, 8, 32, 64, 128, 256)
CONTEXT = 384
ANSWER = 128
COPY_BYTES = 4 << 30
WAIT_S = 300.0
STALL_S = 0.045
"""The target for ticks beside the long prompt."""


class RandomTensors:
    """Weights that are made, not read."""

    def __init__(self, shape: Architecture, device: torch.device) -> None:
        width, queries = shape.width, shape.heads * shape.head
        keys = shape.heads_kv * shape.head
        self._device = device
        self._sizes: dict[str, tuple[int, ...]] = {
            "embedding": (shape.vocabulary, width),
            "head": (shape.vocabulary, width),
            "query": (queries, width),
            "key": (keys, width),
            "value": (keys, width),
            "output": (width, queries),
            "gate": (shape.inner, width),
            "up": (shape.inner, width),
            "down": (width, shape.inner),
        }
        self._width = width

    def read(self, key: str) -> torch.Tensor:
        """A tensor of the right shape; norms are ones."""
        size = self._sizes.get(key.split(".")[-1])
        if size is None:
            return torch.ones(self._width, device=self._device)
        return torch.randn(size, device=self._device, dtype=torch.bfloat16) * 0.02

    def factors(self) -> None:
        """None."""
        return


@dataclass(frozen=True, slots=True)
class Decode:
    """Steady decode of one batch size."""

    batch: int
    tick_ms: float
    tokens_per_s: float
    share: float
    """Of the floor."""
    busy: float
    """The share of the time in which the GPU computed."""


class Ticks:
    """Keeps the records of passes."""

    def __init__(self) -> None:
        self.seen: list[TickRecord] = []

    def __call__(self, record: Record) -> None:
        if isinstance(record, TickRecord):
            self.seen.append(record)


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy on the device reads and writes."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(lambda: target.copy_(source))


def make_backend(device: torch.device, shape: Architecture = SHAPE) -> GpuBackend:
    """A backend with random weights, whose tokens are their numbers."""
    pieces = tuple(f"<{number}>".encode() for number in range(shape.vocabulary))
    texts = TextSide(
        Vocabulary(pieces=pieces, control=frozenset(), eos_tokens=(0,)), lambda segments: []
    )
    torch.manual_seed(0)
    return GpuBackend(place_on_gpu(RandomTensors(shape, device), shape, texts, SIZES, device))


def floor_s(batch: int, context: float, bytes_per_s: float, shape: Architecture = SHAPE) -> float:
    """The least time of a pass."""
    weights = (shape.weight_count - shape.vocabulary * shape.width) * 2
    return (weights + batch * context * shape.kv_values_per_token * 2) / bytes_per_s


def make_engine(backend: GpuBackend, **settings: object) -> tuple[Engine, Ticks]:
    """A started engine, and what it records of its passes."""
    values: dict[str, object] = {
        "model_len_max": SIZES.model_len_max,
        "max_num_seqs": 256,
        "max_num_batched_tokens": SIZES.max_num_batched_tokens,
        "prefill_chunk": SIZES.max_num_batched_tokens,
        **settings,
    }
    engine = Engine(backend, SchedulerSettings(**values))  # type: ignore[arg-type]
    ticks = Ticks()
    engine.observe(ticks)
    engine.start()
    return engine, ticks


def ask(
    engine: Engine, count: int, prompt: int, answer: int, *, seed: int, streams: bool = False
) -> list[Handle[object]]:
    """Hand in requests that share nothing."""
    draw = random.Random(seed)
    handles = []
    for number in range(count):
        tokens = tuple(draw.randrange(100, SHAPE.vocabulary) for _ in range(prompt))
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        name = RequestId(f"{seed}-{number}")
        request = Request(id=name, prompt=tokens, params=params, seed=number)
        handles.append(engine.send(request, streams=streams))
    return handles  # type: ignore[return-value]


def decode(engine: Engine, ticks: Ticks, batch: int, bytes_per_s: float) -> Decode:
    """Steady decode around the context, once to warm up and once to measure."""
    for seed in (2 * batch, 2 * batch + 1):
        ticks.seen.clear()
        for handle in ask(engine, batch, CONTEXT - ANSWER // 2, ANSWER, seed=seed):
            handle.result(WAIT_S)
    steady = [
        each for each in ticks.seen if each.decode_tokens == batch and not each.prefill_tokens
    ]
    # The first ones come between prompts.
    tick_ms = statistics.fmean(each.tick_ms for each in steady[3:])
    forward_ms = statistics.fmean(each.forward_ms for each in steady[3:])
    share = floor_s(batch, CONTEXT, bytes_per_s) * 1e3 / tick_ms
    return Decode(batch, tick_ms, batch / tick_ms * 1e3, share, forward_ms / tick_ms)


def together(engine: Engine, seed: int) -> float:
    """Output tokens per second of 256 requests of 256 in and 256 out that arrive together."""
    started = time.perf_counter()
    for handle in ask(engine, 256, 256, 256, seed=seed):
        handle.result(WAIT_S)
    return 256 * 256 / (time.perf_counter() - started)


def worst_gap_ms(engine: Engine, ticks: Ticks) -> float:
    """The longest tick of eight streams while a prompt of 32,000 tokens arrives."""
    streams = ask(engine, 8, 256, 600, seed=901)
    while sum(each.decode_tokens for each in ticks.seen[-20:]) < 100:
        time.sleep(0.01)
    ticks.seen.clear()
    for handle in ask(engine, 1, 32_000, 4, seed=902):
        handle.result(WAIT_S)
    beside = [each.tick_ms for each in ticks.seen if each.prefill_tokens and each.decode_tokens]
    for handle in streams:
        handle.cancel()
    return max(beside)


def main(batches: Sequence[int] = BATCHES) -> None:
    """Measure and print everything."""
    device = check_gpu()
    bytes_per_s = bandwidth(device)
    print(f"{torch.cuda.get_device_name(device)}: a copy moves {bytes_per_s / 1e12:.2f} TB/s")
    started = time.perf_counter()
    backend = make_backend(device)
    print(f"weights made in {time.perf_counter() - started:.1f} s", flush=True)
    started = time.perf_counter()
    backend.capture_sizes()
    print(f"graphs captured in {time.perf_counter() - started:.1f} s", flush=True)
    engine, ticks = make_engine(backend)
    print("batch | ms a pass | tokens/s | share of the floor | GPU busy")
    for batch in batches:
        found = decode(engine, ticks, batch, bytes_per_s)
        print(
            f"{found.batch:5} | {found.tick_ms:9.2f} | {found.tokens_per_s:8.0f} | "
            f"{found.share:18.3f} | {found.busy:.3f}",
            flush=True,
        )
    for seed in (801, 802):
        print(
            f"256 of 256 in, 256 out, together: {together(engine, seed):.0f} tokens/s", flush=True
        )
    engine.close(0)
    del backend, engine
    engine, ticks = make_engine(make_backend(device), stall_s_target=STALL_S)
    for handle in ask(engine, 16, 2000, 64, seed=803):
        handle.result(WAIT_S)
    print(f"worst gap beside a prompt of 32,000: {worst_gap_ms(engine, ticks):.1f} ms", flush=True)
    engine.close(0)


def _seconds(work: Callable[[], object], count: int = 10) -> float:
    """The least of some times on the device."""
    found: list[float] = []
    for _ in range(count):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / 1e3)
    return min(found)


if __name__ == "__main__":
    main()
