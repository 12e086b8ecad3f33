"""The way into the engine: commands from any thread, taken by the engine thread.

Bounded: when more submissions wait to be taken than it holds, the next one is refused at once.
Cancels and pauses are never refused, and repeating one costs nothing. Whoever sends a command
wakes the engine thread when it sleeps.
"""

import threading
from concurrent.futures import Future
from dataclasses import dataclass

from jitney.core.request import Priority, Request, RequestId
from jitney.core.snapshot import Detail
from jitney.engine.mailbox import Mailbox
from jitney.errors import EngineError, EngineStopped, QueueFull

RETRY_AFTER_S = 1.0
"""When the inbox itself is full, the engine is behind by a whole inbox: no better guess exists."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Take this request; its deltas and its ending go to the mailbox.

    `arrived_at` is when its caller came, where that was earlier than the sending.
    """

    request: Request
    mailbox: Mailbox
    sent_at: float
    arrived_at: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End this request, if it lives; where there is a mailbox, the one that has it."""

    request_id: RequestId
    mailbox: Mailbox | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Let this request do nothing until it is resumed."""

    request_id: RequestId
    mailbox: Mailbox | None


@dataclass(frozen=True, slots=True)
class Resume:
    """Let this request go on."""

    request_id: RequestId
    mailbox: Mailbox | None


@dataclass(frozen=True, slots=True)
class Reprioritise:
    """Put this request into another class."""

    request_id: RequestId
    mailbox: Mailbox | None
    priority: Priority


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new requests; finish those that live."""


@dataclass(frozen=True, slots=True)
class Release:
    """Wait for nobody any more: groups depart as they are, and no pause lasts."""


@dataclass(frozen=True, slots=True)
class Depart:
    """Let those who wait now depart without waiting for others."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End: when nothing lives any more if it `drains`, else at once, cancelling what lives."""

    drains: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Say how everything stands; texts are cut to their last characters."""

    answer: Future[Detail]
    characters_max: int


Steer = Pause | Resume | Reprioritise
Urge = Drain | Release | Depart
Command = Submit | Cancel | Steer | Urge | Stop | Look


class Inbox:
    """Commands on their way in, in order of arrival."""

    def __init__(self, submits_max: int) -> None:
        assert submits_max >= 1, submits_max
        self._submits_max = submits_max
        self._changed = threading.Condition()
        self._commands: list[Command] = []
        self._submit_count = 0
        self._cancelled: set[Cancel] = set()
        self._steers: dict[tuple[RequestId, Mailbox | None, bool], Steer] = {}
        self._closed_by: EngineError | None = None

    def submit(self, command: Submit) -> None:
        """Any thread. Raises QueueFull, or EngineStopped when nobody will take it."""
        with self._changed:
            self._raise_closed()
            if self._submit_count >= self._submits_max:
                raise QueueFull(
                    f"{self._submit_count} requests came since the engine last looked, as many as "
                    "may run and wait in all (max_num_seqs and max_num_queued_reqs); try again in "
                    f"{RETRY_AFTER_S:.1f} s.",
                    RETRY_AFTER_S,
                )
            self._submit_count += 1
            # A cancel that came before was meant for an earlier request of that id.
            self._cancelled.discard(Cancel(command.request.id))
            self._commands.append(command)
            self._changed.notify()

    def cancel(self, command: Cancel) -> None:
        """Any thread. Without effect when the engine has stopped: everything ended with it."""
        with self._changed:
            if self._closed_by is not None or command in self._cancelled:
                return
            self._cancelled.add(command)
            self._commands.append(command)
            self._changed.notify()

    def steer(self, command: Steer) -> None:
        """Any thread. Of several pauses and resumes of one request the last one counts, and so of
        its classes: however often it is steered, little is kept."""
        with self._changed:
            if self._closed_by is None:
                is_class = isinstance(command, Reprioritise)
                self._steers[command.request_id, command.mailbox, is_class] = command
                self._changed.notify()

    def send(self, command: Urge | Stop | Look) -> None:
        """Any thread. Without effect when the engine has stopped."""
        with self._changed:
            if self._closed_by is None:
                self._commands.append(command)
                self._changed.notify()

    def take(self) -> list[Command]:
        """Engine thread: everything that arrived, oldest first."""
        if not self._commands and not self._steers:
            # Read without the lock: what is missed here is found by the next call.
            return []
        with self._changed:
            # After the submissions, which they may be meant for.
            commands, self._commands = [*self._commands, *self._steers.values()], []
            self._steers.clear()
            self._submit_count = 0
            self._cancelled.clear()
            return commands

    def wait(self, timeout: float) -> None:
        """Engine thread: sleep until a command arrives, or for so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._commands or self._steers), timeout)

    def close(self, error: EngineError) -> list[Command]:
        """Refuse everything from here on with this error; what was left comes back."""
        with self._changed:
            if self._closed_by is None:
                self._closed_by = error
            commands, self._commands = self._commands, []
            return commands

    def _raise_closed(self) -> None:
        if self._closed_by is not None:
            raise EngineStopped(str(self._closed_by))
