"""Which NVIDIA GPU is here, without a library for it: `describe_gpu` for people, and `gpu_bytes`.

Asks `nvidia-smi`, which comes with the driver. The backend asks its library.

Tests: tests/unit/backends/machine/test_gpu.py.
"""

import subprocess

QUESTION = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,compute_cap",
    "--format=csv,noheader,nounits",
)
LIMIT_S = 10.0


def describe_gpu() -> str:
    """Name, memory and compute capability of the GPU; less where nobody says, or where there are
    several that differ: which one is used, the library says."""
    found = _gpus()
    if len(found) != 1:
        return "the GPU"
    ((name, mebibytes, capability),) = found
    return f"{name} ({mebibytes / 1024:.0f} GiB, compute capability {capability})"


def gpu_bytes() -> int | None:
    """The whole memory of the largest GPU; None where nobody says."""
    return max((mebibytes << 20 for _, mebibytes, _ in _gpus()), default=None)


def _gpus() -> set[tuple[str, int, str]]:
    """Name, MiB of memory and compute capability of all that differ; empty where nobody says."""
    try:
        said = subprocess.run(QUESTION, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        lines = [line.split(", ") for line in said.stdout.splitlines()]
        return {(name, int(mebibytes), capability) for name, mebibytes, capability in lines}
    except (OSError, subprocess.SubprocessError, ValueError):
        return set()
