"""The model of the GPU benchmark: the shape of Llama 3 8B with random weights, and its floor.

The floor of a pass is the time to read all weights, and the keys and values of its sequences, once,
at the speed of a copy on this device.
"""

from collections.abc import Callable

import torch

from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.backend import TorchSettings
from jitney.backends.torch.gpu_backend import GpuBackend
from jitney.backends.torch.gpu_loading import TextSide, place_on_gpu
from jitney.core.backend import Vocabulary

SHAPE = Architecture(
    family="llama", layers=32, width=4096, heads=32, heads_kv=8, head=128, inner=14_336,
    vocabulary=128_256, length_max=40_000, epsilon=1e-5, attention_scale=128**-0.5,
)  # fmt: skip
SIZES = TorchSettings(
    model="",
    threads=1,
    dtype="bfloat16",
    kv_dtype="bfloat16",
    device="cuda",
    slots=272,
    kv_tokens=560_000,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    model_len_max=40_000,
)
COPY_BYTES = 4 << 30


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


class KeptBackend(GpuBackend):
    """An engine that ends does not close it: the next part takes it."""

    def close(self) -> None:
        """Empty it only."""
        self.reset()


def make_backend(device: torch.device, sizes: TorchSettings = SIZES) -> GpuBackend:
    """A backend with random weights, whose tokens are their numbers."""
    pieces = tuple(f"<{number}>".encode() for number in range(SHAPE.vocabulary))
    texts = TextSide(
        Vocabulary(pieces=pieces, control=frozenset(), eos_tokens=(0,)), lambda segments: []
    )
    torch.manual_seed(0)
    return KeptBackend(place_on_gpu(RandomTensors(SHAPE, device), SHAPE, texts, sizes, device))


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy on the device reads and writes."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(lambda: target.copy_(source))


def floor_s(batch: int, context: float, bytes_per_s: float) -> float:
    """The least time of a pass."""
    weights = (SHAPE.weight_count - SHAPE.vocabulary * SHAPE.width) * 2
    return (weights + batch * context * SHAPE.kv_values_per_token * 2) / bytes_per_s


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
