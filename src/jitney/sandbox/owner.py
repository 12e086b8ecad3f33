"""`Sandbox`: tasks run in a process of their own, under limits that the kernel enforces.

Any thread may call it; one task runs at a time. The process is started at the first task and set up
once. Each task has exactly one answer: one that takes too long or too much memory is ended, even
inside native code, and the next one costs a fork, not a new set-up. Every wait is bounded. The
process ends with its owner, because the socket between them does. What runs inside is
`jitney.sandbox.child`; tasks and answers are JSON.

    SandboxError
    |- TooLong         the task, or the set-up, took longer than it may
    |- TooMuchMemory   it took more memory than it may
    |- Crashed         it ended its process; `signal` says by which signal, if by one
    |  `- Gone           there is no process: it was not the task's fault
    |- Failed          it raised; the text is that of its error
    `- Busy            it was not run: the tasks before it took too long
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any  # Any: JSON, of which the function that sets up knows the shape

from jitney.sandbox.child_process import ChildProcess
from jitney.sandbox.frames import ChannelClosed, MalformedFrame

SetUp = Callable[[Any], Callable[[Any], Any]]
"""A function at the top of a module: given what it needs, gives the function for each task."""

_GRACE_S = 5.0
"""The process enforces its limits itself. One that is later than this is stuck, and is ended."""
_ATTEMPTS_MAX = 2
"""A task is asked once more when its process was ended from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a task may take, and what the set-up may."""

    seconds: float
    memory_bytes: int
    """Beyond what the process has after its set-up. Where the system does not limit address space
    (macOS), only the time bounds the memory."""
    wait_s: float
    """Longest wait for the tasks of others."""
    stack_bytes: int = 0
    """The stack for a task, where the usual one is too small; not part of its memory."""
    set_up_s: float = 60.0
    set_up_bytes: int = 2**30
    tasks_max: int = 1000
    growth_bytes_max: int = 64 * 2**20
    """A process that carries out tasks leaves after so many, or when it has grown by so much, so
    that nothing adds up in it."""


class SandboxError(Exception):
    """A task has no answer."""


class TooLong(SandboxError):
    """It took longer than it may."""


class TooMuchMemory(SandboxError):
    """It took more memory than it may."""


class Crashed(SandboxError):
    """It ended its process."""

    def __init__(self, text: str, signal: int | None = None) -> None:
        super().__init__(text)
        self.signal = signal


class Gone(Crashed):
    """There is no process: it could not be started, was ended from outside, or is closed."""


class Failed(SandboxError):
    """It raised an error."""


class Busy(SandboxError):
    """The tasks before it took too long."""


class Sandbox:
    """One process for the tasks of one set-up. `given` is called for what the set-up needs."""

    def __init__(self, set_up: SetUp, given: Callable[[], Any], bounds: Bounds) -> None:
        assert set_up.__qualname__.isidentifier(), "it is found by its name in its module"
        self._set_up = set_up
        self._given = given
        self._bounds = bounds
        self._turn = threading.Lock()
        self._child: ChildProcess | None = None
        self._is_set_up = False
        self._is_closed = False
        self._start_count = 0
        self._task_number = 0
        self._owner = os.getpid()

    @property
    def start_count(self) -> int:
        """How often a process was started."""
        return self._start_count

    @property
    def pid(self) -> int | None:
        """The number of the process, when there is one."""
        child = self._child
        return None if child is None else child.pid

    def spawn(self) -> None:
        """Start the process and return: it imports what it needs before it is set up.

        Raises SandboxError.
        """
        with self._in_turn():
            self._spawned()

    def start(self) -> None:
        """Start the process and set it up, if that was not done. Raises SandboxError."""
        with self._in_turn():
            try:
                self._ready()
            except ChannelClosed as error:
                raise Gone("the process ended while it was set up") from error

    def run(self, task: Any) -> Any:
        """The answer to a task, both JSON. Raises SandboxError."""
        with self._in_turn():
            for _ in range(_ATTEMPTS_MAX):
                try:
                    return self._ask(self._ready(), task, self._bounds.seconds)
                except ChannelClosed:
                    self._end()
            raise Gone("the process is gone")

    def close(self) -> None:
        """End the process and whatever it works on; idempotent, and nothing runs afterwards."""
        self._is_closed = True
        if self._owner != os.getpid():
            return  # a fork: the process is its parent's
        child = self._child
        if child is not None:
            # Before the turn is waited for: this cuts short whoever has it.
            child.kill()
        with self._turn:
            self._end()

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        if self._owner != os.getpid():
            raise Gone("the process belongs to the one that this was forked from")
        if not self._turn.acquire(timeout=self._bounds.wait_s):
            raise Busy(f"others took longer than {self._bounds.wait_s:g} s")
        try:
            yield
        except (TooLong, TooMuchMemory, Crashed, Failed):
            raise
        except BaseException:
            # Interrupted in between: half a frame may be under way.
            self._end()
            raise
        finally:
            self._turn.release()

    def _ready(self) -> ChildProcess:
        """The process, set up. Raises SandboxError or ChannelClosed."""
        child, limit_s = self._spawned(), self._bounds.set_up_s
        if not self._is_set_up:
            try:
                self._ask(child, [self._given(), asdict(self._bounds)], limit_s)
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
            self._start_count += 1
            # Looked at after the lines above: `close` ends the process that it finds.
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
        limit_s += _GRACE_S
        (channel,) = child.channels
        question = json.dumps([self._task_number, value], separators=(",", ":")).encode("ascii")
        try:
            channel.send(question, limit_s)
            while True:
                number, kind, answer = _read(channel.receive(limit_s))
                # A process that ends just after its answer is answered for once more.
                if number == self._task_number:
                    break
        except TimeoutError:
            self._end()
            raise TooLong(f"it took longer than {limit_s:g} s, and its process is stuck") from None
        except MalformedFrame as error:
            raise ChannelClosed("the process sent what is no answer.") from error
        if kind == "done":
            return answer
        raise _error(kind, answer)


def _read(frame: bytes) -> tuple[int, str, Any]:
    try:
        number, kind, value = json.loads(frame)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedFrame("an answer has a number, a kind and a value.") from error
    return number, kind, value


def _error(kind: str, value: Any) -> SandboxError:
    match kind:
        case "long":
            return TooLong(f"it took longer than {value:g} s")
        case "memory":
            return TooMuchMemory(f"it took more than {value // 10**6} MB of memory")
        case "ended":
            return Crashed(f"it ended its process (signal {value})", value)
        case _:
            return Failed(str(value))
