"""Tests of `jitney.backends.machine.cores`: affinity and quotas."""

import os
from pathlib import Path

import pytest

from jitney.backends.machine.cores import allowed_cores, usable_cores

CORES = allowed_cores()
VERSION_1 = "sys/fs/cgroup/cpu/cpu.cfs_"


def test_cores_are_those_allowed_and_where_none_are_named_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards macOS, where a process is not bound to cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5}, raising=False)
    assert allowed_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert allowed_cores() == os.cpu_count()
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert allowed_cores() == 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, CORES),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, CORES),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, CORES),
        ({"sys/fs/cgroup/cpu.max": "99900000 100000"}, CORES),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "100000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            },
            1,
        ),
        ({f"{VERSION_1}quota_us": "100000\n", f"{VERSION_1}period_us": "100000\n"}, 1),
        ({f"{VERSION_1}quota_us": "-1\n", f"{VERSION_1}period_us": "100000\n"}, CORES),
    ],
)
def test_usable_cores_respect_affinity_and_quota(
    tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    """Guards a container with a quota: threads beyond it are throttled in turn."""
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert usable_cores(tmp_path) == cores
