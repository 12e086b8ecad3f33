"""Children that do not outlive their parent. Called first thing in a child, on its main thread."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends; false when that has ended already.

    Where the system cannot do so, a child that reads from its parent still notices.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the line above; then the process has another one.
    return os.getppid() == parent
