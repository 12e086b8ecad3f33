"""What this machine's processor is, as the system tells it. Called at start-up, on any thread.

Linux tells in a file; macOS has a program for it. Where neither is there, the processor goes by
the name of its architecture and says nothing of its instructions.
"""

import platform
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.machine.system import output_of

CPUINFO = Path("/proc/cpuinfo")
_PART = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")
"""Linux knows an ARM processor by these numbers; it has no name for it."""


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
        return _ask_processor()
    name = found.get("model name") or " ".join(found[each] for each in _PART if each in found)
    instructions = found.get("flags", found.get("Features", ""))
    return Processor(name or platform.machine(), instructions)


def _ask_processor() -> Processor:
    name = output_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    # Only the Intel ones have these, and the second not all of those.
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    instructions = [output_of("sysctl", "-n", each) for each in names]
    return Processor(name, " ".join(each.lower() for each in instructions if each))
