"""The process of a sandbox, where the system has not what Linux has."""

import resource
import signal
from pathlib import Path

import pytest

from jitney.sandbox import child


def test_without_proc_memory_is_not_limited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guards macOS: it has no bound on address space, and must not fail for want of one."""
    monkeypatch.setattr(child, "_PROC", tmp_path)
    before = resource.getrlimit(resource.RLIMIT_AS)
    child._limit_memory(0, is_final=True)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    # Threads of native code do not show; those of Python do.
    monkeypatch.setattr("threading.active_count", lambda: 1)
    assert child._is_alone()
    monkeypatch.setattr("threading.active_count", lambda: 2)
    assert not child._is_alone()


@pytest.mark.parametrize(
    ("code", "grown", "outcome"),
    [
        (-signal.SIGALRM, 2**20, ("long", 2.0)),
        (-signal.SIGABRT, 2**19, ("memory", 2**20)),
        (-signal.SIGABRT, 0, ("ended", signal.SIGABRT)),
        (7, 0, ("ended", None)),
    ],
)
def test_an_end_is_told_by_its_cause(code: int, grown: int, outcome: tuple[str, object]) -> None:
    """Guards the sentence that a caller reads: native code says only that it ended."""
    assert child._outcome_of_end(code, grown, 2.0, 2**20) == outcome
