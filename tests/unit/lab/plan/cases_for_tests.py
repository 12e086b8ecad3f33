"""What workers of a pool do in its test: apart, because each of them imports this file."""

import os
import signal
import time
from pathlib import Path

SLEEP_S = 600.0
CASE_BYTES = 1_000_000
"""More than a pipe holds."""


def double(number: int) -> int:
    return 2 * number


def fail_or_sleep(case: bytes) -> None:
    if len(case) == CASE_BYTES:
        raise ValueError("a mistake")
    time.sleep(SLEEP_S)


def interrupt_parent(number: int) -> None:
    if number == 0:
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(SLEEP_S)


def interrupt_all(number: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return number


def die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def note_and_sleep(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(SLEEP_S)
