"""Tests of the Makefile: which Python a newcomer's virtual environment is made with."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OLD = "#!/bin/sh\nexit 1\n"
"""As a Python answers that is older than asked for, or the one of macOS that is not there yet."""


def making(tmp_path: Path, *flags: str, **programs: str) -> "subprocess.CompletedProcess[str]":
    """Have make build the environment where these programs are all that is found."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    target = tmp_path / "venv"
    return subprocess.run(
        [make, *flags, f"VENV={target}", f"{target}/bin/python"],
        cwd=ROOT,
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("programs", [{}, {"python3": OLD}], ids=["none", "an old one"])
def test_without_a_python_that_is_new_enough_a_sentence_says_so(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    """Guards newcomers on macOS, whose python3 is 3.9: the first thing they see."""
    done = making(tmp_path, **programs)
    assert done.returncode != 0
    assert "jitney needs Python 3.11 or newer on the PATH." in done.stdout
    assert "Traceback" not in done.stderr


def test_a_newer_python_is_found_behind_an_old_one(tmp_path: Path) -> None:
    """Guards the same newcomers after they installed another one beside it."""
    ours = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    programs = {"python3": OLD, "python3.13": OLD, "python3.12": ours, "python3.11": ours}
    done = making(tmp_path, "-n", **programs)
    assert done.returncode == 0, done.stderr
    assert "python3.12 -m venv" in done.stdout
