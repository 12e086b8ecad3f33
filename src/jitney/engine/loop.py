"""The engine thread: what it is asked to do (`Inbox`), and what it runs (`Loop`).

Any thread puts commands into the inbox; the engine thread takes them. The inbox is bounded: when it
is full of submissions, the next one is refused at once. Cancels and pauses are never refused, and
repeating one costs nothing. A command wakes the engine thread if it sleeps. The engine thread takes
submissions, cancels, stops and other calls in the order in which they were sent. After them come
pauses, resumes and changes of class: for each request only the last one.

Only the engine thread calls `Loop.run`; if it never started, who closes the engine does. When there
is nothing to do it sleeps, until a command comes or the scheduler may have new work; never longer
than `IDLE_S_MAX`. At the end, for any reason, every request gets its ending (invariant 1) and the
backend is closed.

Tests: tests/unit/engine/test_inbox.py and test_engine.py.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from jitney.core.backend import Backend
from jitney.core.request import Request, RequestId
from jitney.engine.answer import Ending
from jitney.engine.clock import Clock
from jitney.engine.mailbox import Mailbox
from jitney.engine.tick import Tick
from jitney.errors import EngineError, EngineStopped, JitneyError, QueueFull

_log = logging.getLogger("jitney.engine")

IDLE_S_MAX = 2.0
"""The longest sleep. After it an idle backend is checked. Otherwise nothing would notice its loss:
every request needs it first to tokenise the prompt, so no batch would run."""
IDLE_S_MIN = 0.001
"""The shortest sleep: a wake time that is just over must not make the thread spin."""
RETRY_AFTER_S = 1.0
"""When the inbox is full, the engine is late, and there is no better estimate."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Take this request. Its deltas and its ending go to the mailbox.

    `arrived_at` is the time at which its caller came, if that was earlier than `sent_at`.
    """

    request: Request
    mailbox: Mailbox
    sent_at: float
    arrived_at: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the engine: if it `drains`, after the last request; else at once, with a cancel."""

    drains: bool


Action = Callable[[], None]
"""To be called by the engine thread, between two batches."""

Command = Submit | Stop | Action


class Inbox:
    """Commands that wait for the engine thread."""

    def __init__(self, submits_max: int) -> None:
        assert submits_max >= 1, submits_max
        self._submits_max = submits_max
        self._changed = threading.Condition()
        self._commands: list[Command] = []
        self._submit_count = 0
        self._cancelled: set[tuple[RequestId, Mailbox | None]] = set()
        self._replaceable: dict[Hashable, tuple[Action, Action]] = {}
        """With what is called when another one takes its place."""
        self._closed_by: EngineError | None = None

    def submit(self, command: Submit) -> None:
        """Any thread. Raises QueueFull, or EngineStopped."""
        with self._changed:
            if self._closed_by is not None:
                raise EngineStopped(str(self._closed_by))
            if self._submit_count >= self._submits_max:
                raise QueueFull(
                    f"{self._submit_count} requests came since the engine last looked, as many as "
                    "may run and wait in all (max_num_seqs and max_num_queued_reqs); try again in "
                    f"{RETRY_AFTER_S:.1f} s.",
                    RETRY_AFTER_S,
                )
            self._submit_count += 1
            # An earlier cancel was for an earlier request with that id.
            self._cancelled.discard((command.request.id, None))
            self._send(command)

    def cancel(self, request_id: RequestId, mailbox: Mailbox | None, command: Action) -> None:
        """Any thread. Send a cancel, unless the same one is waiting already."""
        with self._changed:
            is_new = (request_id, mailbox) not in self._cancelled
            if is_new and self._closed_by is None:
                self._cancelled.add((request_id, mailbox))
                self._send(command)

    def send(self, command: Action | Stop) -> None:
        """Any thread. No effect when the engine has stopped: everything has ended then."""
        with self._changed:
            self._send(command)

    def send_last(self, key: Hashable, command: Action, dropped: Action = lambda: None) -> None:
        """Any thread. Of all waiting commands with the same key, only the last one is kept. So many
        pauses and resumes of a request take little memory. For the others `dropped` is called."""
        with self._changed:
            if self._closed_by is not None:
                dropped()
                return
            if key in self._replaceable:
                self._replaceable[key][1]()
            self._replaceable[key] = (command, dropped)
            self._changed.notify()

    def take(self) -> list[Command]:
        """Engine thread: everything that was sent."""
        if not self._commands and not self._replaceable:
            # Read without the lock: the next call finds what is missed here.
            return []
        with self._changed:
            # These come last, because they may be for requests that are submitted here.
            last = [command for command, _ in self._replaceable.values()]
            commands, self._commands = self._commands + last, []
            self._replaceable.clear()
            self._submit_count = 0
            self._cancelled.clear()
            return commands

    def wait(self, timeout: float) -> None:
        """Engine thread: sleep until a command arrives, or for this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._commands or self._replaceable), timeout)

    def close(self, error: EngineError) -> list[Command]:
        """From now on refuse everything with this error. Returns the commands that are left."""
        with self._changed:
            if self._closed_by is None:
                self._closed_by = error
            for _, dropped in self._replaceable.values():
                dropped()
            self._replaceable.clear()
            commands, self._commands = self._commands, []
            return commands

    def _send(self, command: Command) -> None:
        if self._closed_by is None:
            self._commands.append(command)
            self._changed.notify()


class Loop:
    """The body of the engine thread."""

    def __init__(self, tick: Tick, inbox: Inbox, backend: Backend, clock: Clock) -> None:
        self._tick = tick
        self._inbox = inbox
        self._backend = backend
        self._clock = clock
        self._taken: deque[Command] = deque()
        self._stop: Stop | None = None
        self._is_checked = False
        self._backend_checked_at = clock.now()

    def run(self) -> None:
        """Run until a stop, until the backend is given up, or until a fault of the engine."""
        reason = EngineStopped("The engine was closed.")
        try:
            while self._run_once():
                pass
        except Exception as error:
            _log.exception("The engine stops because of a fault of its own")
            reason = EngineStopped(
                f"The engine stopped because of a fault of its own: {error or type(error).__name__}"
            )
        finally:
            self._end(self._tick.stopped or reason)

    def _run_once(self) -> bool:
        """Take commands, then one tick or a sleep; false after the last."""
        self._take_commands()
        if self._stop is not None and (not self._stop.drains or not self._tick.has_work):
            self._tick.cancel_all()
            return False
        has_run = self._tick.run(self._take_commands)
        if self._tick.stopped is not None:
            return False
        if has_run:
            self._is_checked = False
        elif self._stop is None or self._tick.has_work:
            self._idle()
        return True

    def _idle(self) -> None:
        if not self._tick.has_work and not self._is_checked:
            self._tick.check_sample()
            self._is_checked = True
        now = self._clock.now()
        if now - self._backend_checked_at >= IDLE_S_MAX:
            self._tick.check_backend()
            self._backend_checked_at = self._clock.now()
        wake_at = self._tick.wake_at(now)
        pause_s = IDLE_S_MAX if wake_at is None else wake_at - now
        self._inbox.wait(min(max(pause_s, IDLE_S_MIN), IDLE_S_MAX))

    def _take_commands(self) -> None:
        # A command is dropped only when it is done, so that a fault loses none.
        self._taken.extend(self._inbox.take())
        while self._taken:
            self._carry_out(self._taken[0])
            self._taken.popleft()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Submit():
                try:
                    self._tick.submit(
                        command.request, command.mailbox, command.sent_at, command.arrived_at
                    )
                except JitneyError as error:
                    command.mailbox.end(Ending(None, error))
            case Stop():
                self._stop = command
                self._tick.drain()
            case action:
                action()

    def _end(self, reason: EngineError) -> None:
        self._tick.stop(reason)
        self._taken.extend(self._inbox.close(reason))
        for command in self._taken:
            if isinstance(command, Submit) and command.mailbox.ending is None:
                command.mailbox.end(Ending(None, EngineStopped(str(reason))))
        self._taken.clear()
        try:
            self._backend.close()
        except Exception:
            _log.exception("The backend could not be closed")
