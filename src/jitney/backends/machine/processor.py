"""Reads the name and the instructions of this machine's processor. At start-up, on any thread.

Linux has a file for it, and macOS a program. Without both, the name is that of the architecture,
and the instructions are unknown.
"""

import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ANSWER_S_MAX = 10.0
CPUINFO = Path("/proc/cpuinfo")
_PART = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")
"""On Linux an ARM processor has these numbers and no name."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor: its name, and its instructions."""

    name: str
    instructions: str

    @property
    def has_bfloat16(self) -> bool:
        """Whether it has instructions for bfloat16. Without them bfloat16 is only slower."""
        return not {"avx512_bf16", "amx_bf16"}.isdisjoint(self.instructions.split())


def read_processor() -> Processor:
    """The processor of this machine, as its first core describes it."""
    text = text_of(CPUINFO)
    if not text:
        return _ask_processor()
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or " ".join(found[each] for each in _PART if each in found)
    instructions = found.get("flags", found.get("Features", ""))
    return Processor(name or platform.machine(), instructions)


def _ask_processor() -> Processor:
    name = output_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    # Only processors of Intel have the first, and only some of those the second.
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    instructions = [output_of("sysctl", "-n", each) for each in names]
    return Processor(name, " ".join(each.lower() for each in instructions if each))


def text_of(path: Path) -> str:
    """The text of a file of the system; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def output_of(*command: str) -> str:
    """The output of a program of the system; empty where it is missing, fails or does not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ANSWER_S_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
