"""One run of the backend's process: its three channels, questions to it, and how it ended.

Made by `jitney.backends.process.client`. Any thread may end it; each channel is used by one thread
at a time. Whoever speaks to a process that is gone, is stuck or sends what is no message gets
BackendCrashed, and the process is ended.
Tests: tests/unit/backends/process/test_client.py.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from jitney.backends.process.messages import Channel, Failure, Message
from jitney.errors import BackendCrashed, InvalidRequest
from jitney.sandbox.child_process import ChildProcess
from jitney.sandbox.frames import ChannelClosed, MalformedFrame

_MODULE = "jitney.backends.process.worker"
_GRACE_S = 2.0

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """For a backend whose library may hold an illegal instruction, and can do without it."""

    setting: str
    """Is false in the next process."""
    reason: str
    """Why there may be such an instruction, as a clause."""
    goes_on: str
    """How the backend goes on, as a clause."""
    advice: str
    """What the operator can do, as a clause."""


class WorkerProcess:
    """A process that runs `jitney.backends.process.worker`. Raises BackendCrashed.

    With a `fallback` the next process can be started by it, if `can_fall_back`.
    """

    def __init__(self, fallback: Fallback | None = None, *, can_fall_back: bool = False) -> None:
        try:
            self.process = ChildProcess(
                _MODULE, str(os.getpid()), channel_count=3, keeps_output=True
            )
        except OSError as error:
            raise BackendCrashed(f"the backend process could not be started ({error}).") from error
        self.can_fall_back = can_fall_back
        self._fallback = fallback
        self.batches, self.texts, self.constraints = map(Channel, self.process.channels)
        self._is_closed = False

    def ask(
        self, channel: Channel, question: Message, expected: type[MessageT], limit_s: float
    ) -> MessageT:
        """One question and its answer, or the error that was the answer."""
        with self.talking(limit_s):
            channel.send(question, limit_s)
            answer = channel.receive(limit_s)
        return self.checked(answer, expected)

    def checked(self, answer: Message, expected: type[MessageT]) -> MessageT:
        """The answer, if it is of this kind. Raises the error that it is instead."""
        if isinstance(answer, Failure):
            raise answer.error()
        if not isinstance(answer, expected):
            self.process.kill()
            raise BackendCrashed("the backend process gave an answer to another question.")
        return answer

    @contextlib.contextmanager
    def talking(self, limit_s: float, *, was_reached: bool = True) -> Iterator[None]:
        """For all that is sent and received: what goes wrong becomes BackendCrashed."""
        try:
            yield
        except TimeoutError as error:
            self.process.kill()
            raise BackendCrashed(
                f"the backend did not answer within {limit_s:.3g} seconds, and was ended."
            ) from error
        except MalformedFrame as error:
            self.process.kill()
            raise BackendCrashed(f"the backend process sent a bad frame: {error}") from error
        except ChannelClosed as error:
            crash = self.crash()
            crash.was_reached = was_reached
            raise crash from error
        except InvalidRequest:
            raise  # nothing was sent
        except BaseException:
            # Interrupted in between: the answer would be taken for that of the next question.
            self.process.kill()
            raise

    def end(self) -> None:
        """Close its channels, which asks it to end, and kill it if it does not."""
        self.process.end(_GRACE_S)

    def close(self) -> None:
        """End it because nobody wants it any more; whoever waits for it is told so."""
        self._is_closed = True
        self.end()

    def crash(self) -> BackendCrashed:
        """The error that says how the process ended. It is killed first, if it still lives."""
        if self._is_closed:
            return BackendCrashed("the backend is closed.", is_wanted=True)
        self.process.wait_or_kill(_GRACE_S)
        number, last_lines = self.process.signal, self.process.last_lines()
        why = f"; the last it wrote was: {last_lines}" if last_lines else "."
        if number is None:
            return BackendCrashed(
                f"the backend process ended by itself (status {self.process.status}){why}"
            )
        if number == signal.SIGKILL:
            why = "; the system does that when memory runs out."
        elif number == signal.SIGILL and self._fallback is not None:
            goes_on = f"{self._fallback.goes_on} until " if self.can_fall_back else ""
            why = f": {self._fallback.reason}; {goes_on}{self._fallback.advice}."
        return BackendCrashed(f"the backend process was killed (signal {number}){why}", number)
