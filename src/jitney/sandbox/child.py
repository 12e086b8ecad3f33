"""The process of a `Sandbox`: `python -m jitney.sandbox.child SOCKET MODULE FUNCTION`.

`jitney.sandbox.sandbox` starts it, never a person. It has one thread. It calls FUNCTION, which sets
it up, and forks a server that runs tasks one after another. Then it only waits for the end of that
server. If the server ends during a task, this process answers in its place and forks the next
server. So a killed task costs one fork.

The kernel enforces the limits: a timer, whose signal ends the server even inside native code, and a
limit on its address space. Both processes end when the socket closes, or when the timer runs out.
"""

import contextlib
import gc
import importlib
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any  # Any: JSON, of which the function that sets up knows the shape

from jitney.sandbox.die_with_parent import ignore_stop_signals
from jitney.sandbox.frames import ChannelClosed, Frames
from jitney.sandbox.peak_memory import peak_bytes

EXIT_DONE = 0
EXIT_NOT_SET_UP = 3
EXIT_MALFORMED = 4
EXIT_FULL = 5
"""The server has done enough tasks; a fresh server follows."""

_CURRENT_TASK = struct.Struct("=QQd")
"""What a server leaves behind: its current task (0 for none), its memory at its start, and the time
limit of the task."""
_NO_TASK = _CURRENT_TASK.pack(0, 0, 0.0)
_TEXT_CHARACTERS_MAX = 400
_NICENESS_ADDED = 5
"""More requests wait for a forward pass than for this process."""
_MEMORY_SHARE = 4
"""A crash counts as lack of memory when the task took more than a quarter of its limit."""
_PROC = Path("/proc")

Task = Callable[[Any], Any]


def main(arguments: list[str]) -> int:
    """Serve one owner until it ends. Returns the exit status."""
    end, module, function = arguments
    ignore_stop_signals()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS_ADDED)
    # When memory runs out, the system should end this process and not the model's.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    frames = Frames(socket.socket(fileno=int(end)))
    # Import early, while the owner may be busy. If it fails, it fails again below with a report.
    with contextlib.suppress(Exception):
        importlib.import_module(module)
    try:
        number, (inputs, bounds), _ = json.loads(frames.receive())
        _limit_memory(bounds["set_up_bytes"])
        try:
            with _timer(bounds["set_up_s"]):
                work = getattr(importlib.import_module(module), function)(inputs)
        except BaseException as error:  # Whatever it is, the owner gets it and this process ends.
            _send(frames, number, *_outcome_of(error, bounds["set_up_bytes"]))
            return EXIT_NOT_SET_UP
        del inputs
        _send(frames, number, "done", None)
        return _watch(frames, work, bounds)
    except ChannelClosed:
        return EXIT_DONE


def _watch(frames: Frames, work: Task, bounds: dict[str, Any]) -> int:
    """Fork servers, one after another. Answer for a server that ended during a task."""
    current_task = mmap.mmap(-1, _CURRENT_TASK.size)
    # All servers share this memory, as long as none writes to it.
    gc.collect()
    gc.freeze()
    while True:
        assert _is_alone(), "A fork copies one thread, but the locks of all threads."
        current_task[:] = _NO_TASK
        pid = os.fork()
        if pid == 0:
            os._exit(
                _on_stack(
                    bounds["stack_bytes"], partial(_serve, frames, work, bounds, current_task)
                )
            )
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        number, start_bytes, limit_s = _CURRENT_TASK.unpack(current_task[:])
        if number:
            grown = peak_bytes(usage) - start_bytes
            _send(frames, number, *_outcome_of_end(code, grown, limit_s, bounds["memory_bytes"]))
        elif code != EXIT_FULL:
            # It ended without a task: somebody killed it, or its socket closed.
            return EXIT_DONE


def _serve(frames: Frames, work: Task, bounds: dict[str, Any], current_task: mmap.mmap) -> int:
    """Run tasks until the socket closes, or until it has done enough. Returns the exit status."""
    start_bytes = peak_bytes()
    _limit_memory(bounds["memory_bytes"], is_final=True)
    try:
        for _ in range(bounds["tasks_max"]):
            number, task, limit_s = json.loads(frames.receive())
            current_task[:] = _CURRENT_TASK.pack(number, start_bytes, limit_s)
            try:
                with _timer(limit_s):
                    answer = json.dumps([number, "done", work(task)]).encode("ascii")
            except BaseException as error:  # Untrusted text may cause any failure.
                _send(frames, number, *_outcome_of(error, bounds["memory_bytes"]))
            else:
                frames.send(answer)
            current_task[:] = _NO_TASK
            if peak_bytes() - start_bytes > bounds["growth_bytes_max"]:
                # Freed memory may not have gone back to the system.
                break
    except ChannelClosed:
        return EXIT_DONE
    except (ValueError, RecursionError):
        return EXIT_MALFORMED
    return EXIT_FULL


def _on_stack(size: int, serve: Callable[[], int]) -> int:
    """Serve on a stack of this size. The stack is reserved before memory is limited."""
    if not size:
        return serve()
    status = [EXIT_MALFORMED]
    threading.stack_size(size)
    thread = threading.Thread(target=lambda: status.append(serve()), name="tasks")
    thread.start()
    thread.join()
    return status[-1]


def _send(frames: Frames, number: int, kind: str, value: Any) -> None:
    frames.send(json.dumps([number, kind, value]).encode("ascii"))


def _outcome_of(error: BaseException, memory_bytes: int) -> tuple[str, Any]:
    if isinstance(error, MemoryError):
        return "memory", memory_bytes
    return "failed", f"{type(error).__name__}: {error}"[:_TEXT_CHARACTERS_MAX]


def _outcome_of_end(code: int, grown: int, limit_s: float, memory_bytes: int) -> tuple[str, Any]:
    """The answer for a server that ended during a task. A negative code is a signal."""
    if code == -signal.SIGALRM:
        return "long", limit_s
    if grown > memory_bytes // _MEMORY_SHARE:
        # Native code without memory ends its process, each library with its own signal.
        return "memory", memory_bytes
    return "ended", -code if code < 0 else None


@contextlib.contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """End this process if the code inside takes longer."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(more_bytes: int, *, is_final: bool = False) -> None:
    """Limit growth of the address space to `more_bytes`, where the system can do that."""
    try:
        pages = int((_PROC / "self" / "statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = pages * resource.getpagesize() + more_bytes
    if hard != resource.RLIM_INFINITY:
        bound = min(bound, hard)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound if is_final else hard))


def _is_alone() -> bool:
    """Whether this process has one thread. Native threads can be seen on Linux only."""
    if threading.active_count() > 1:
        return False
    try:
        return len(os.listdir(_PROC / "self" / "task")) == 1
    except OSError:
        return True


if __name__ == "__main__":
    # Native libraries may hang in their clean-up, and nothing here needs a clean-up.
    os._exit(main(sys.argv[1:]))
