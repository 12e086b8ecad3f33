"""`python group_keeper.py COMMAND...`: runs a command that ends with its caller.

The caller holds the other end of standard input. When that closes, also because the caller was
killed, the whole process group is killed: the command, what it started, and this process. The same
happens when the command ends, so that nothing of it is left.
"""

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> None:
    """Run the command to its end, or to the end of standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The command gets them too and ends. Ignored ones would stay ignored in the command.
        signal.signal(number, lambda number, frame: None)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    threading.Thread(target=_kill_at_end_of_input, name="caller-watch", daemon=True).start()
    process.wait()
    _kill_group()


def _kill_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    _kill_group()


def _kill_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
