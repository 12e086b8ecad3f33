"""Tests of `scripts.set_up`, as make calls it: what it says and does on several machines.

It runs in a child whose machine is changed by a file that Python loads at its start.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.backends_for_tests import needs

ROOT = Path(__file__).parents[3]
NO_COMPILER = "No working C++ compiler was found"


def run(folder: Path, *arguments: str, machine: str = "", path: str | None = None) -> str:
    """What the script prints; on another machine, or with another PATH, where they are given."""
    start = folder / "start"
    start.mkdir(exist_ok=True)
    lines = f"import platform\nplatform.machine = lambda: {machine!r}\n" if machine else ""
    (start / "sitecustomize.py").write_text(lines, encoding="utf-8")
    changed = {"PYTHONPATH": str(start), "JITNEY_CACHE": str(folder / "cache")}
    changed |= {} if path is None else {"PATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.set_up", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
        | changed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_what_works_is_left_as_it_is(tmp_path: Path) -> None:
    """Guards the second `make llama`: nothing is fetched or installed again."""
    needs("llamacpp")
    assert run(tmp_path, "--llama") == "llama.cpp is here and works\n"
    assert not (tmp_path / "cache" / "wheels").exists()


def test_a_machine_without_a_compiler_and_nothing_prebuilt_gets_sentences(tmp_path: Path) -> None:
    """Guards a newcomer on a rare machine against the log of a build."""
    said = run(tmp_path, "--llama", "--force", machine="riscv64", path=str(tmp_path))
    assert "llama.cpp has to be compiled: nothing prebuilt is known for Linux on riscv64\n" in said
    assert NO_COMPILER in said
    assert "apt-get install" in said


def test_a_cache_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    """Guards a home that cannot be written: no traceback, and nothing is installed."""
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    said = run(tmp_path, "--llama", "--force", path=str(tmp_path))
    assert "could not be made" in said or "could not be written" in said
