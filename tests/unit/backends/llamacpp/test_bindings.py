"""Tests of `jitney.backends.llamacpp.bindings`: an interrupt while native code works."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

CHILD = "tests.unit.backends.llamacpp.interrupted_child"


@pytest.mark.parametrize("name", ["load", "context", "conversion"])
def test_an_interrupt_is_raised_and_nothing_is_left(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    """Guards Ctrl-C while a model loads, its memory is made, or it is converted."""
    command = [sys.executable, "-m", CHILD, name, str(tiny_model), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
