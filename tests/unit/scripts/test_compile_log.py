"""Tests of `scripts.compile_log`: a build is watched, logged, and its end is told."""

import os
import sys
from pathlib import Path

import pytest

from scripts.compile_log import watch


def test_a_failing_build_shows_its_last_lines_and_keeps_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards the person whose build fails: the reason stands at the end, the rest in the log."""
    log = tmp_path / "build.log"
    program = "for n in range(1, 101): print(f'[{n}/100] Building')\nraise SystemExit(3)"
    assert watch([sys.executable, "-c", program], os.environ, log) == 3
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [f"[{n}/100] Building" for n in range(71, 101)]
    assert "100 of 100 files" in shown.out
    assert len(log.read_text(encoding="utf-8").splitlines()) == 100


def test_a_build_that_succeeds_is_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the terminal: compiler output belongs into the log."""
    program = "import os; print(os.environ['GIVEN'])"
    environ = {**os.environ, "GIVEN": "told to the build"}
    assert watch([sys.executable, "-c", program], environ, tmp_path / "build.log") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "told" not in shown.out
    assert "told to the build" in (tmp_path / "build.log").read_text(encoding="utf-8")
