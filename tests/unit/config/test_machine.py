"""Tests of `jitney.config.machine`: the cache folder, and the folder of jobs."""

from pathlib import Path

import pytest

from jitney.config import cache_folder, resolve
from jitney.config.machine import jobs_folder


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


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_STATE_HOME": "/b", "JITNEY_CACHE": "/a"}, Path("/b/jitney/jobs")),
        ({"XDG_STATE_HOME": "b"}, Path.home() / ".local/state/jitney/jobs"),
        ({}, Path.home() / ".local/state/jitney/jobs"),
    ],
)
def test_the_folder_of_jobs_is_not_in_the_cache(environ: dict[str, str], folder: Path) -> None:
    """Guards work that is not made again: whoever empties a cache must not lose it."""
    assert jobs_folder(environ) == folder
    assert resolve({}, None, environ).serving.jobs_dir == folder
    given = {**environ, "JITNEY_JOBS_DIR": "/given"}
    assert resolve({}, None, given).serving.jobs_dir == Path("/given")
