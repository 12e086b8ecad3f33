"""`Inbox`: commands to the engine, from any thread to the engine thread.

It is bounded: when it is full of submissions, the next one is refused at once. Cancels and pauses
are never refused, and repeating one costs nothing. A command wakes the engine thread if it sleeps.

The engine thread takes submissions, cancels, stops and other calls in the order in which they were
sent. After them come pauses, resumes and changes of class: for each request only the last one.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from jitney.core.request import Request, RequestId
from jitney.engine.mailbox import Mailbox
from jitney.errors import EngineError, EngineStopped, QueueFull

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
    """Stop the engine: if it `drains`, after the last live request; else at once, with a cancel."""

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
