"""A limit on the memory of processes that run: a cgroup, where we may make one."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_VERSIONS = ((_ROOT / "memory", "memory.limit_in_bytes"), (_ROOT, "memory.max"))
"""Where groups are made in versions 1 and 2, and the file of one that holds its limit."""


def missing() -> str | None:
    """Why no limit can be set here, if so."""
    try:
        with _group():
            return None
    except OSError as error:
        return f"no memory cgroup can be made here: {error.strerror}"


@contextlib.contextmanager
def confined(pids: list[int], more_mib: float) -> Iterator[None]:
    """These processes together may take so much more than they have. Raises OSError.

    Version 1 does not count what they took before, so the limit is on what comes on top of it.
    """
    with _group() as (group, limit):
        (group / limit).write_text(str(int(more_mib * 2**20)))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        try:
            yield
        finally:
            _empty(group)


@contextlib.contextmanager
def _group() -> Iterator[tuple[Path, str]]:
    root, limit = _VERSIONS[0] if _VERSIONS[0][0].is_dir() else _VERSIONS[1]
    group = root / f"jitney-hostile-{os.getpid()}"
    group.mkdir()
    try:
        if not (group / limit).exists():
            raise FileNotFoundError(2, f"a group here has no {limit}")
        yield group, limit
    finally:
        group.rmdir()


def _empty(group: Path) -> None:
    """Move whoever still lives back up: a group is removed only when it is empty."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(pid)
