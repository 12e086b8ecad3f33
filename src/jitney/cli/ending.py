"""A word before SIGTERM ends a command: `tells_of_end`. Main thread."""

import contextlib
import os
import signal
from collections.abc import Iterator

from jitney.cli.failures import say


@contextlib.contextmanager
def tells_of_end() -> Iterator[None]:
    """Have SIGTERM end the process as ever, after a sentence on standard error.

    Whoever finds half an answer in a file learns why. What has SIGTERM ignored keeps it so.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(number: int, _frame: object) -> None:
    # The stream may be in use where the signal came, and says so by this error.
    with contextlib.suppress(RuntimeError):
        say("ended by SIGTERM before it was done.")
    # Nothing is raised, which native code that calls Python back would swallow.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
