"""Which cores this process may use: its affinity, and its container's CPU quota. Any thread."""

import os
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
    cores = allowed_cores()
    quotas = [quota for quota in (*_quotas_v2(root), _quota_v1(root)) if quota is not None]
    return max(1, min([cores, *(int(quota) for quota in quotas)]))


def _quotas_v2(root: Path) -> list[float | None]:
    """The quotas of the process's control group and of all its parents. All of them apply."""
    groups = root / "sys/fs/cgroup"
    own = ""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            own = line.removeprefix("0::/")
    folder = groups / own
    folders = [folder, *folder.parents] if folder.is_relative_to(groups) else [groups]
    texts = [text_of(each / "cpu.max") for each in folders if each.is_relative_to(groups)]
    return [_ratio(text.split()) for text in texts]


def _quota_v1(root: Path) -> float | None:
    folder = root / "sys/fs/cgroup/cpu"
    quota, period = (text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return _ratio([quota.strip(), period.strip()])


def _ratio(words: list[str]) -> float | None:
    """Quota over period; None when it is unlimited ('max' or -1) or cannot be read."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])
