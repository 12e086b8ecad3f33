"""Which NVIDIA GPU is here, in words, without a library for it: `describe_gpu`.

Asks `nvidia-smi`, which comes with the driver. For people only: the backend asks its library.

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
    try:
        said = subprocess.run(QUESTION, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        (words,) = set(said.stdout.splitlines())
        name, mebibytes, capability = words.split(", ")
        gibibytes = int(mebibytes) / 1024
    except (OSError, subprocess.SubprocessError, ValueError):
        return "the GPU"
    return f"{name} ({gibibytes:.0f} GiB, compute capability {capability})"
