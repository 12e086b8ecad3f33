"""The process of a `Sandbox`: `python -m jitney.sandbox.child SOCKET MODULE FUNCTION`.

Started by `jitney.sandbox.owner`, never by hand. It has one thread. It calls the function that it
is named, which sets it up, and forks a server that runs tasks one after another. Then it only waits
for the end of that server: if a task was under way, it answers in its place, and it forks the next
one. So a task that is killed costs a fork.

The kernel enforces the limits: a timer, whose signal ends the server even inside native code, and a
bound on its address space. Both processes end when the socket does, or at the latest when the timer
runs out.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: JSON, of which the function that sets up knows the shape

from jitney.sandbox.die_with_parent import leave_end_to_parent
from jitney.sandbox.frames import ChannelClosed, Frames, MalformedFrame
from jitney.sandbox.peak_memory import most_bytes

EXIT_DONE = 0
EXIT_NOT_SET_UP = 3
EXIT_MALFORMED = 4
EXIT_FULL = 5
"""The server has done enough, and a fresh one follows it."""

_UNDER_WAY = struct.Struct("=QQ")
"""What a server leaves behind: the task it was at (0 for none), and its memory at its start."""
_TEXT_CHARACTERS_MAX = 400
_NICER = 5
"""Added to its niceness: many wait for a forward pass, and a few for this."""
_MEMORY_SHARE = 4
"""A crash counts as one for lack of memory when more than a quarter of it was taken."""
_PROC = Path("/proc")

Task = Callable[[Any], Any]


def main(arguments: list[str]) -> int:
    """Serve one owner until it goes; the value is the exit status."""
    end, module, function = arguments
    leave_end_to_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICER)
    # When memory runs out, the system should end this process and not the model's.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    frames = Frames(socket.socket(fileno=int(end)))
    # Already now, while the owner may be busy. If it fails, it fails again below and is reported.
    with contextlib.suppress(Exception):
        importlib.import_module(module)
    try:
        number, (given, bounds) = json.loads(frames.receive())
        _limit_memory(bounds["set_up_bytes"])
        try:
            with _timer(bounds["set_up_s"]):
                work = getattr(importlib.import_module(module), function)(given)
        except BaseException as error:  # Whatever it is, the owner is told and this process ends.
            _send(frames, number, *_outcome_of(error, bounds["set_up_bytes"]))
            return EXIT_NOT_SET_UP
        del given
        _send(frames, number, "done", None)
        return _watch(frames, work, bounds)
    except ChannelClosed:
        return EXIT_DONE


def _watch(frames: Frames, work: Task, bounds: dict[str, Any]) -> int:
    """Fork servers, one after another, and answer for those that cannot any more."""
    under_way = mmap.mmap(-1, _UNDER_WAY.size)
    # What stands here is shared by all servers, as long as nobody writes to it.
    gc.collect()
    gc.freeze()
    while True:
        assert _is_alone(), "a fork copies one thread, and the locks of all"
        under_way[:] = _UNDER_WAY.pack(0, 0)
        pid = os.fork()
        if pid == 0:
            os._exit(_on_stack(bounds["stack_bytes"], _TaskServer(frames, work, bounds, under_way)))
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        number, start_bytes = _UNDER_WAY.unpack(under_way[:])
        if number:
            grown = most_bytes(usage) - start_bytes
            _send(frames, number, *_outcome_of_end(code, grown, bounds))
        elif code != EXIT_FULL:
            # With nothing to do it was ended from outside, or its socket ended.
            return EXIT_DONE


@dataclass(frozen=True, slots=True)
class _TaskServer:
    """Carries out tasks until the socket ends, or enough is done."""

    frames: Frames
    work: Task
    bounds: dict[str, Any]
    under_way: mmap.mmap

    def serve(self) -> int:
        """The value is the exit status."""
        start_bytes = most_bytes()
        _limit_memory(self.bounds["memory_bytes"], is_final=True)
        try:
            for _ in range(self.bounds["tasks_max"]):
                number, task = json.loads(self.frames.receive())
                self.under_way[:] = _UNDER_WAY.pack(number, start_bytes)
                self._answer(number, task)
                self.under_way[:] = _UNDER_WAY.pack(0, 0)
                if most_bytes() - start_bytes > self.bounds["growth_bytes_max"]:
                    # What it has freed may not have come back.
                    break
        except ChannelClosed:
            return EXIT_DONE
        except (MalformedFrame, ValueError, RecursionError):
            return EXIT_MALFORMED
        return EXIT_FULL

    def _answer(self, number: int, task: Any) -> None:
        try:
            with _timer(self.bounds["seconds"]):
                answer = json.dumps([number, "done", self.work(task)]).encode("ascii")
        except BaseException as error:  # Text of strangers may fail in any way there is.
            _send(self.frames, number, *_outcome_of(error, self.bounds["memory_bytes"]))
        else:
            self.frames.send(answer)


def _on_stack(size: int, server: _TaskServer) -> int:
    """Serve on a stack of that size; its addresses are set aside before they are limited."""
    if not size:
        return server.serve()
    status = [EXIT_MALFORMED]
    threading.stack_size(size)
    thread = threading.Thread(target=lambda: status.append(server.serve()), name="tasks")
    thread.start()
    thread.join()
    return status[-1]


def _send(frames: Frames, number: int, kind: str, value: Any) -> None:
    frames.send(json.dumps([number, kind, value]).encode("ascii"))


def _outcome_of(error: BaseException, memory_bytes: int) -> tuple[str, Any]:
    if isinstance(error, MemoryError):
        return "memory", memory_bytes
    return "failed", f"{type(error).__name__}: {error}"[:_TEXT_CHARACTERS_MAX]


def _outcome_of_end(code: int, grown: int, bounds: dict[str, Any]) -> tuple[str, Any]:
    """What is said for a server that ended at work. A negative code is a signal."""
    if code == -signal.SIGALRM:
        return "long", bounds["seconds"]
    if grown > bounds["memory_bytes"] // _MEMORY_SHARE:
        # Native code that is refused memory ends its process, each library by its own signal.
        return "memory", bounds["memory_bytes"]
    return "ended", -code if code < 0 else None


@contextlib.contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """End this process if what is inside takes longer."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(more_bytes: int, *, is_final: bool = False) -> None:
    """Bound the address space to what there is and so much more, where the system does that."""
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
    """Whether this process has one thread; those of native code show on Linux only."""
    if threading.active_count() > 1:
        return False
    try:
        return len(os.listdir(_PROC / "self" / "task")) == 1
    except OSError:
        return True


if __name__ == "__main__":
    # Native libraries may hang in their clean-up, and nothing here needs one.
    os._exit(main(sys.argv[1:]))
