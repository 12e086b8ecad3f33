"""The list of processes is the same by either way to it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server.processes import PROC, children, is_alive, memory_bytes

WAIT_S = 100.0
HELD_BYTES = 64 << 20
PROGRAM = f"held = b'x' * {HELD_BYTES}; print(flush=True); input()"


@pytest.fixture(params=["file", "program"])
def proc(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the files are; or where they are not, so that a program is asked."""
    if request.param == "file":
        if not (PROC / "self").exists():
            pytest.skip("there is no /proc")
        return PROC
    if shutil.which("ps") is None:
        pytest.skip("there is no ps")
    return tmp_path


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds some memory and waits."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_child_is_listed_until_it_ends(proc: Path, child: "subprocess.Popen[bytes]") -> None:
    """Guards the tests that look for processes which were left behind."""
    assert child.pid in children(os.getpid(), proc)
    assert is_alive(child.pid, proc)
    assert HELD_BYTES < memory_bytes(child.pid, proc) < 4 * HELD_BYTES
    child.kill()
    # Ended, and not waited for: a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid not in children(os.getpid(), proc)
    assert not is_alive(child.pid, proc)
    child.wait(WAIT_S)
    assert not is_alive(child.pid, proc)
