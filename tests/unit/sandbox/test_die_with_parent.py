"""A child ends with its parent, whether or not the kernel sees to it."""

import signal
import subprocess
import sys

import pytest

from tests.e2e.server.processes import is_alive, wait_until_gone

WAIT_S = 100.0
CHILD = (
    "import ctypes, os, sys, threading\n"
    "from jitney.sandbox.die_with_parent import die_with_parent\n"
    "{taken_away}\n"
    "assert die_with_parent(os.getppid())\n"
    "print(os.getpid(), [each.name for each in threading.enumerate()], flush=True)\n"
    "threading.Event().wait(600)\n"
)
PARENT = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=False)\n"


@pytest.mark.parametrize(
    "taken_away",
    [
        "",
        "sys.platform = 'darwin'",
        "ctypes.CDLL = lambda name: type('Libc', (), {'prctl': lambda *given: -1})()",
    ],
    ids=["nothing", "linux", "leave"],
)
def test_a_child_that_reads_nothing_ends_with_its_parent(taken_away: str) -> None:
    """Guards the next conversion: an orphan would go on writing in its folder.

    Where the kernel cannot be asked to kill the child, it looks for its parent itself.
    """
    script = PARENT.format(child=CHILD.format(taken_away=taken_away))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        number, _, threads = parent.stdout.readline().partition(" ")
        assert is_alive(int(number))
        parent.send_signal(signal.SIGKILL)
        parent.wait(WAIT_S)
        is_watched = sys.platform != "linux" or taken_away != ""
        assert ("parent-watch" in threads) is is_watched
    assert wait_until_gone(int(number))


def test_a_child_whose_parent_has_ended_is_told() -> None:
    """Guards the moment between a child's start and its question, in a process of its own."""
    program = (
        "import os\n"
        "from jitney.sandbox.die_with_parent import die_with_parent\n"
        "print(die_with_parent(os.getpid()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "False"
