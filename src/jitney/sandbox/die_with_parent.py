"""A child ends with its parent, and not before. Called first in a child, on its main thread."""

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.5


def leave_end_to_parent() -> None:
    """Ignore the signals that a terminal or a service manager sends to every process at once.

    The parent drains first, and needs this process to do so.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int) -> bool:
    """Have this process killed when its parent ends; false when that has ended already.

    On Linux the kernel does so. Elsewhere a thread of the child looks for its parent, and is late
    while native code lets no other thread run.
    """
    is_left_to_kernel = _is_left_to_kernel()
    # The parent may have ended before the line above; then the process has another one.
    if os.getppid() != parent:
        return False
    if not is_left_to_kernel:
        watch = threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True)
        watch.start()
    return True


def _is_left_to_kernel() -> bool:
    if sys.platform != "linux":
        return False
    try:
        status: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return False
    return status == 0


def _watch(parent: int) -> None:
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)
