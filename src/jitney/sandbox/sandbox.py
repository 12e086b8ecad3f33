"""`Sandbox`: runs tasks in a separate process, with limits that the kernel enforces.

Any thread may call it; one task runs at a time. The first task starts the process, which is set up
once. Each task gets exactly one answer. A task that takes too long or too much memory is killed,
even inside native code; the next task then costs a fork, not a new set-up. Every wait has a limit.
The process ends with its owner, because the socket between them closes. The process runs
`jitney.sandbox.child`; tasks and answers are JSON.

    SandboxError       the task raised an error, or ended its process
    |- TooLong         the task, or the set-up, exceeded its time limit
    |- TooMuchMemory   the task exceeded its memory limit
    |- Gone            there is no process, and the task is not the cause
    `- Busy            the task did not run: earlier tasks took too long
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any  # Any: JSON; the set-up function knows its shape

from jitney.sandbox.child_process import ChildProcess
from jitney.sandbox.frames import ChannelClosed

SetUp = Callable[[Any], Callable[[Any], Any]]
"""A function at the top of a module. It takes its input and returns the function for tasks."""

_GRACE_S = 5.0
"""The process enforces its limits itself. If it is this late, it is stuck and gets killed."""
_dump = json.JSONEncoder(separators=(",", ":")).encode
_ATTEMPTS_MAX = 2
"""A task is sent once more when somebody killed its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a task and of the set-up."""

    seconds: float
    memory_bytes: int
    """Memory beyond that of the process after its set-up. Where the system cannot limit address
    space (macOS), only the time limit holds."""
    wait_s: float
    """Longest wait for earlier tasks."""
    stack_bytes: int = 0
    """The stack for a task, if the default is too small. It does not count as memory."""
    set_up_s: float = 60.0
    set_up_bytes: int = 2**30
    tasks_max: int = 1000
    growth_bytes_max: int = 64 * 2**20
    """A server ends after `tasks_max` tasks, or after growing this much, so that nothing adds up
    in it."""


class SandboxError(Exception):
    """A task has no answer. The texts are clauses, to follow a colon."""


class TooLong(SandboxError):
    """The task, or the set-up, exceeded its time limit."""


class TooMuchMemory(SandboxError):
    """The task exceeded its memory limit."""


class Gone(SandboxError):
    """There is no process: it could not start, somebody killed it, or it is closed."""


class Busy(SandboxError):
    """Earlier tasks took too long."""


class Sandbox:
    """One process for the tasks of one set-up. `make_input` returns the input of the set-up."""

    def __init__(self, set_up: SetUp, make_input: Callable[[], Any], bounds: Bounds) -> None:
        assert set_up.__qualname__.isidentifier(), "The child finds it by name in its module."
        self._set_up = set_up
        self._make_input = make_input
        self._bounds = bounds
        self._turn = threading.Lock()
        self._child: ChildProcess | None = None
        self._is_set_up = False
        self._is_closed = False
        self.start_count = 0
        """How many processes were started so far."""
        self._task_number = 0
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """The number of the process, if there is one."""
        child = self._child
        return None if child is None else child.pid

    def spawn(self) -> None:
        """Start the process without a set-up; it can import meanwhile. Raises SandboxError."""
        with self._in_turn():
            self._spawned()

    def run(self, task: Any, limit_s: float | None = None) -> Any:
        """The answer to a task, both JSON. The task may have a time limit of its own.

        Raises SandboxError.
        """
        limit_s = limit_s or self._bounds.seconds
        with self._in_turn():
            for _ in range(_ATTEMPTS_MAX):
                try:
                    return self._ask(self._ready(), task, limit_s)
                except ChannelClosed:
                    self._end()
            raise Gone("the process is gone")

    def close(self) -> None:
        """End the process and its task; idempotent. Later calls raise Gone."""
        self._is_closed = True
        if self._owner != os.getpid():
            return  # This is a fork; the process belongs to the parent.
        child = self._child
        if child is not None:
            # Before waiting for the lock: this ends the task of its holder.
            child.kill()
        with self._turn:
            self._end()

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        if self._owner != os.getpid():
            raise Gone("the process belongs to the parent of this fork")
        if not self._turn.acquire(timeout=self._bounds.wait_s):
            raise Busy(f"earlier tasks took longer than {self._bounds.wait_s:g} s")
        try:
            yield
        except SandboxError:
            raise
        except BaseException:
            # Interrupted: half a frame may be in the socket.
            self._end()
            raise
        finally:
            self._turn.release()

    def _ready(self) -> ChildProcess:
        """The process after its set-up. Raises SandboxError or ChannelClosed."""
        child, limit_s = self._spawned(), self._bounds.set_up_s
        if not self._is_set_up:
            try:
                self._ask(child, [self._make_input(), asdict(self._bounds)], limit_s)
                self._is_set_up = True
            except BaseException as error:
                self._end()
                if isinstance(error, ChannelClosed) and child.signal == signal.SIGALRM:
                    raise TooLong(f"the set-up took longer than {limit_s:g} s") from None
                raise
        return child

    def _spawned(self) -> ChildProcess:
        if self._is_closed:
            raise Gone("the process is closed")
        if self._child is not None and self._child.has_ended:
            self._end()
        if self._child is None:
            names = (self._set_up.__module__, self._set_up.__qualname__)
            try:
                self._child = ChildProcess("jitney.sandbox.child", *names)
            except OSError as error:
                raise Gone(f"the process could not be started ({error})") from error
            self._is_set_up = False
            self.start_count += 1
            # Checked after the lines above: `close` ends only a process that it can see.
            if self._is_closed:
                raise Gone("the process is closed")
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _ask(self, child: ChildProcess, value: Any, limit_s: float) -> Any:
        """Raises SandboxError or ChannelClosed."""
        self._task_number += 1
        wait_s = limit_s + _GRACE_S
        (channel,) = child.channels
        question = _dump([self._task_number, value, limit_s]).encode("ascii")
        try:
            channel.send(question, wait_s)
            while True:
                number, kind, answer = json.loads(channel.receive(wait_s))
                # A server that ends right after its answer gets a second answer from its parent.
                if number == self._task_number:
                    break
        except TimeoutError:
            self._end()
            raise TooLong(f"it took longer than {wait_s:g} s, and its process is stuck") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise ChannelClosed("the process sent a bad answer.") from error
        if kind == "done":
            return answer
        raise _error(kind, answer)


def _error(kind: str, value: Any) -> SandboxError:
    match kind:
        case "long":
            return TooLong(f"it took longer than {value:g} s")
        case "memory":
            return TooMuchMemory(f"it took more than {value // 10**6} MB of memory")
        case "ended":
            return SandboxError(f"it ended its process (signal {value})")
        case _:
            return SandboxError(str(value))
