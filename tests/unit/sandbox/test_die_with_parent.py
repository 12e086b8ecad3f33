"""A child ends with its parent, whether or not the kernel sees to it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

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


def is_alive(pid: int) -> bool:
    """Whether a process of that number exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll, for at most the limit."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not happen within the limit")


@pytest.mark.parametrize(
    "taken_away",
    [
        "",
        "sys.platform = 'darwin'",
        "ctypes.CDLL = lambda name: object()",
        "ctypes.CDLL = lambda name: type('Libc', (), {'prctl': lambda *given: -1})()",
    ],
    ids=["nothing", "linux", "prctl", "leave"],
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
    wait_until(lambda: not is_alive(int(number)))


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
