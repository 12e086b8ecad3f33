"""What sandboxes are set up with in tests: tasks of every kind, good and bad."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: JSON

ROOT = Path(__file__).parents[1]
"""To be on the path of the process, which does not look into the current folder."""


def set_up(given: Any) -> Callable[[Any], Any]:
    """Tasks are lists of a name and what belongs to it."""
    if given == "raise":
        raise ValueError("not today")
    if given == "hang":
        signal.pause()
    if given == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if given == "swell":
        bytearray(2**33)

    def work(task: Any) -> Any:
        name, *rest = task
        return _TASKS[name](given, *rest)

    return work


def set_up_threads(given: Any) -> Callable[[Any], Any]:
    """A set-up that leaves a thread behind."""
    threading.Thread(target=signal.pause, daemon=True).start()
    return set_up(given)


def _swell(given: Any, count: int) -> int:
    del given
    return len(bytearray(count))


def _end(given: Any, number: int) -> None:
    del given
    os.kill(os.getpid(), number)


def _leave(given: Any, status: int) -> None:
    del given
    os._exit(status)


def _fail(given: Any, text: str) -> None:
    del given
    raise KeyError(text)


_TASKS: dict[str, Callable[..., Any]] = {
    "given": lambda given: given,
    "same": lambda given, value: value,
    "pids": lambda given: [os.getppid(), os.getpid()],
    "pause": lambda given: signal.pause(),
    "swell": _swell,
    "end": _end,
    "exit": _leave,
    "fail": _fail,
}
