"""What this machine's processor is, as the system tells it. Called at start-up, on any thread.

Where the system does not say, everything here is empty.
"""

import os
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor by its name and the instructions that it says it has."""

    name: str
    instructions: str

    @property
    def has_bfloat16(self) -> bool:
        """Whether it computes with them itself; else they would only be slower."""
        return not {"avx512_bf16", "amx_bf16"}.isdisjoint(self.instructions.split())


def read_processor(cpuinfo: Path = CPUINFO) -> Processor:
    """The processor of this machine; of several cores, the first."""
    found: dict[str, str] = {}
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                found.setdefault(key.strip(), value.strip())
    except OSError:
        return Processor("", "")
    return Processor(found.get("model name", ""), found.get("flags", found.get("Features", "")))


def allowed_cores() -> int:
    """Cores that this process may run on, however much of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
