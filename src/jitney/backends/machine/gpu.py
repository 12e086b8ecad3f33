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
    """Name, memory and compute capability of the first GPU; less where nobody says."""
    try:
        said = subprocess.run(QUESTION, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        name, mebibytes, capability = said.stdout.splitlines()[0].split(", ")
        gibibytes = int(mebibytes) / 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return "the GPU"
    return f"{name} ({gibibytes:.0f} GiB, compute capability {capability})"
