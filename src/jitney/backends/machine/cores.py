"""Which cores this process may use: its affinity, and its container's CPU quota. Any thread."""

import os
from collections.abc import Iterator
from pathlib import Path

from jitney.backends.machine.processor import text_of


def allowed_cores() -> int:
    """How many cores this process may run on, without regard to a quota."""
    return len(allowed_numbers()) or os.cpu_count() or 1


def allowed_numbers() -> frozenset[int]:
    """The numbers of those cores; empty where the system does not give them."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset()


def usable_cores(root: Path = Path("/")) -> int:
    """How many cores this process may use at once.

    A quota of two and a half cores counts as two: the system slows more threads than that down.
    """
    return max(1, min([allowed_cores(), *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    """Whole cores by each quota of the process's control group and of all its parents."""
    groups = folder = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            folder = groups / line.removeprefix("0::/")
    folders = [each for each in (folder, *folder.parents) if each.is_relative_to(groups)]
    texts = [text_of(each / "cpu.max") for each in folders]
    # The older version of control groups.
    old = (text_of(groups / f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    texts.append(" ".join(old))
    for words in map(str.split, texts):
        # A quota without a limit is 'max' or -1.
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            yield int(words[0]) // int(words[1])
