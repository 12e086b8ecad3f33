"""Tests of `benchmarks.http`: where it cannot run it says so."""

from pathlib import Path

import pytest

from benchmarks.http.__main__ import NOT_HERE, main


def test_without_proc_a_sentence_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards whoever measures on macOS against a traceback after minutes."""
    assert main([], tmp_path / "none") == NOT_HERE
    assert "run on Linux" in capsys.readouterr().out
