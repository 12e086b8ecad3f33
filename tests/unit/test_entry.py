"""Tests of `jitney.__main__`: Ctrl-C before there is anything to stop."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

INTERRUPTED = """
import os, runpy, signal, sys

class Press:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, {handler})
sys.meta_path.insert(0, Press())
sys.argv = ["jitney", "--version"]
runpy.run_module("jitney", run_name="__main__")
"""


def _run(name: str, handler: str) -> subprocess.CompletedProcess[str]:
    """The program, with Ctrl-C pressed when the module of that name is imported."""
    program = INTERRUPTED.format(name=name, handler=handler)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", ["jitney.cli.main", "click", "jitney.cli.verbs"])
def test_an_interrupt_during_the_imports_is_silent(name: str) -> None:
    """Guards Ctrl-C in the first tenths of a second: a traceback of imports came."""
    done = _run(name, "signal.default_int_handler")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """Guards a program that a shell started in the background."""
    done = _run("click", "signal.SIG_IGN")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("jitney ")


def test_the_program_starts_where_the_module_does() -> None:
    """Guards the installed command, which starts by another way than `python -m jitney`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"jitney": "jitney.__main__:run"}
