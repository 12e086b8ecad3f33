"""Which functions the threads of this process spend processor time in: `sample`.

Now and then a thread looks where all others are, and counts what each took of the processor since
the last look for the function that it is in. A thread that waits takes nothing, and so counts
nothing. A look is possible only where the interpreter changes threads: functions that make system
calls have some of their neighbours' time. Time in threads that never run Python is told apart.
"""

import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any  # Any: a JSON value

LOOK_S = 0.004
SWITCH_S = 0.0005
"""A thread is asked to give way after this, so that looks come in time."""

TASKS = Path("/proc/self/task")


def sample(seconds: float) -> dict[str, Any]:
    """Look for so long; seconds of the processor by function, by package and by thread."""
    functions: defaultdict[str, float] = defaultdict(float)
    packages: defaultdict[str, float] = defaultdict(float)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    own = threading.get_ident()
    pause = threading.Event()
    before_all = _taken_by_name()
    began = time.perf_counter()
    try:
        threads = _threads(own)
        before = {each: _taken_s(each) for each in threads}
        while time.perf_counter() - began < seconds:
            pause.wait(LOOK_S)
            frames = sys._current_frames()
            for native, ident in _threads(own).items():
                now_s = _taken_s(native)
                took_s = now_s - before.get(native, now_s)
                before[native] = now_s
                frame = frames.get(ident)
                if frame is not None and took_s > 0:
                    functions[_function(frame)] += took_s
                    packages[_package(frame)] += took_s
    finally:
        sys.setswitchinterval(usual_s)
    after_all = _taken_by_name()
    for name, each in before_all.items():
        after_all[name] -= each
    return {
        "seconds": time.perf_counter() - began,
        "functions": _largest(functions, 40),
        "packages": _largest(packages, 20),
        "threads": _largest(after_all, 20),
    }


def _largest(taken: dict[str, float], count: int) -> dict[str, float]:
    """Those with the most seconds, the most first."""
    ranked = sorted(taken.items(), key=lambda each: -each[1])
    return {name: seconds for name, seconds in ranked[:count] if seconds > 0}


def _threads(own: int) -> dict[int, int]:
    """The threads of Python but this one: the kernel's number, and the interpreter's."""
    return {
        each.native_id: each.ident
        for each in threading.enumerate()
        if each.native_id is not None and each.ident is not None and each.ident != own
    }


def _taken_s(native: int) -> float:
    """What a thread has taken of the processor."""
    try:
        return int((TASKS / str(native) / "schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def _taken_by_name() -> defaultdict[str, float]:
    """What all threads have taken, also those without Python, by the names that they have."""
    names = {each.native_id: each.name for each in threading.enumerate()}
    taken: defaultdict[str, float] = defaultdict(float)
    for task in TASKS.iterdir():
        native = int(task.name)
        try:
            name = names.get(native) or (task / "comm").read_text().strip() + " (no Python)"
        except OSError:
            continue
        taken[name] += _taken_s(native)
    return taken


def _function(frame: FrameType) -> str:
    return f"{_place(frame)}:{frame.f_code.co_qualname}"


def _place(frame: FrameType) -> str:
    """The module of a frame, as one imports it."""
    return str(frame.f_globals.get("__name__", frame.f_code.co_filename))


def _package(frame: FrameType) -> str:
    """The nearest package on the stack that is not the standard library's."""
    at: FrameType | None = frame
    while at is not None:
        name = _place(at).split(".")
        if name[0] == "jitney":
            return ".".join(name[:2])
        if "site-packages" in at.f_code.co_filename:
            return name[0]
        at = at.f_back
    return "standard library"
