"""Tests of `jitney.config.machine`: the cache folder and the usable cores."""

from pathlib import Path

import pytest

from jitney.backends.machine.processor import allowed_cores
from jitney.config import cache_folder, resolve, usable_cores

CORES = allowed_cores()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"JITNEY_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"JITNEY_CACHE_DIR": "/a"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/jitney")),
        ({"XDG_CACHE_HOME": "b"}, Path.home() / ".cache/jitney"),
        ({"JITNEY_CACHE": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache/jitney"),
    ],
)
def test_the_cache_folder_follows_the_environment(environ: dict[str, str], folder: Path) -> None:
    """Guards where files of hundreds of megabytes land."""
    assert cache_folder(environ) == folder
    assert resolve({}, None, environ).settings.cache_dir == folder


def test_a_flag_for_the_cache_folder_wins() -> None:
    """Guards `--cache-dir` against the environment."""
    flags = {"cache_dir": "/flag"}
    assert resolve(flags, None, {"JITNEY_CACHE": "/a"}).settings.cache_dir == Path("/flag")


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
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            CORES,
        ),
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
