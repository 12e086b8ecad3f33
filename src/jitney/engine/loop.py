"""`Loop`: what the engine thread runs. It takes commands, runs ticks, sleeps, and stops.

Only the engine thread calls `run`. When there is nothing to do it sleeps, until a command comes or
the scheduler may have new work; never longer than `IDLE_S_MAX`. At the end, for any reason, every
request gets its ending (invariant 1) and the backend is closed.

Tests: tests/unit/engine/test_engine.py.
"""

import logging
from collections import deque

from jitney.core.backend import Backend
from jitney.engine.answer import Ending
from jitney.engine.clock import Clock
from jitney.engine.inbox import Command, Inbox, Stop, Submit
from jitney.engine.tick import Tick
from jitney.errors import EngineError, EngineStopped, JitneyError

_log = logging.getLogger("jitney.engine")

IDLE_S_MAX = 2.0
"""The longest sleep. After it an idle backend is checked. Otherwise nothing would notice its loss:
every request needs it first to tokenise the prompt, so no batch would run."""
IDLE_S_MIN = 0.001
"""The shortest sleep: a wake time that is just over must not make the thread spin."""


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
            self._tick.check()
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
