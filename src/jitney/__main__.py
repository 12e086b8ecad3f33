"""The program `jitney`, which `python -m jitney` is too: Ctrl-C while it is being imported.

Loading the command line takes a few tenths of a second, in which nobody would turn an interrupt
into an exit code. So nothing is imported here before there is a handler for it, except what sets
one.
"""

import importlib
import os

_INTERRUPTED = 130

try:
    import signal
except KeyboardInterrupt:
    os._exit(_INTERRUPTED)


def run() -> None:
    """The entry point."""
    before = signal.getsignal(signal.SIGINT)
    # Whoever has interrupts ignored, as a shell does in the background, wants that kept.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    start = importlib.import_module("jitney.cli.main").run
    signal.signal(signal.SIGINT, before)
    start()


def _leave(_number: int, _frame: object) -> None:
    # Raising would print a traceback, or be lost in a callback of the import system. There is
    # nothing yet to be written or closed.
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
