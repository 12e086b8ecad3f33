"""Ctrl-C while something runs that must not be left half done.

Python runs a signal handler at the next line of Python. That may be in a callback of native code:
an exception cannot pass through it, so Python prints it, and it is lost. Or it is between the start
of a process and the first bytes for it. So the handler runs when the whole is over.
"""

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Iterator


class _SignalStack(ctypes.Structure):
    """Where a thread's signal handlers run, as Linux has it."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def signal_stack_kept() -> Iterator[None]:
    """This thread has the same stack for signal handlers after the block.

    OpenVINO gives the thread that loads a model another one, and frees it with the model. The next
    signal, such as Ctrl-C, would end the process with a segmentation fault.
    """
    if sys.platform != "linux":
        yield
        return
    before, set_stack = _SignalStack(), ctypes.CDLL(None).sigaltstack
    set_stack(None, ctypes.byref(before))
    try:
        yield
    finally:
        set_stack(ctypes.byref(before), None)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay a SIGINT until the end of the block.

    Changes nothing on other threads, which run no handlers, nor where the handler is not Python
    code: such a handler ignores the interrupt or ends the process.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, None)
