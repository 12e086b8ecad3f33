"""Tests of `benchmarks.http`: where it cannot run it says so."""

import os
from pathlib import Path

import pytest

from benchmarks.http.served import missing_here


def test_what_is_missing_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards whoever measures on macOS against a traceback after minutes."""
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(os, "sched_setaffinity", print, raising=False)
    assert missing_here(tmp_path) is None
    assert "on Linux only" in str(missing_here(tmp_path / "none"))
    monkeypatch.delattr(os, "sched_setaffinity")
    assert "on Linux only" in str(missing_here(tmp_path))
