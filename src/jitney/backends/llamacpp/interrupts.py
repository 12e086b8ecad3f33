"""Ctrl-C while native code runs that calls Python back.

Python runs a signal's handler at the next line of Python, which may be the entry of a callback.
What is raised there cannot cross native code: it is printed, and lost. So a long call holds the
interrupt back and gives it to the handler when it is over. Knows nothing of llama.cpp.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Have a SIGINT that comes in the block take effect at its end.

    Only the main thread runs handlers, and only one written in Python can raise: elsewhere, and
    where interrupts are ignored or end the process, nothing is changed.
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
