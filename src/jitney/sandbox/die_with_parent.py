"""Makes a child process end with its parent. Called first in a child, on its main thread."""

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5


def ignore_stop_signals() -> None:
    """Ignore the signals that a terminal or a service manager sends to every process at once.

    The parent finishes its work first, and needs this process for that.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int) -> bool:
    """Kill this process when its parent ends. Returns false if the parent has already ended.

    On Linux the kernel does this. On other systems a thread of the child checks for its parent;
    it is late when native code blocks the other threads.
    """
    kernel_kills_child = _kernel_kills_child()
    # The parent may have ended before the line above. Then the process has another parent.
    if os.getppid() != parent:
        return False
    if not kernel_kills_child:
        watch = threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True)
        watch.start()
    return True


def _kernel_kills_child() -> bool:
    if sys.platform != "linux":
        return False
    status: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return status == 0


def _watch(parent: int) -> None:
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)
