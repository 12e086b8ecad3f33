"""One run of the backend's process: its four channels, questions to it, and how it ended.

Made by `jitney.backends.process.client`. Any thread may end it; one thread at a time uses each
channel. Where the process has ended, is stuck or sends a bad frame, calls raise BackendCrashed, and
the process is ended.
Tests: tests/unit/backends/process/test_client.py and test_deadly_texts.py.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TypeVar

from jitney.backends.process.messages import Channel, Failure, Message
from jitney.errors import BackendCrashed, InvalidRequest
from jitney.sandbox.child_process import ChildProcess
from jitney.sandbox.frames import ChannelClosed, MalformedFrame

_MODULE = "jitney.backends.process.worker"
_GRACE_S = 2.0

_THREADS = {"questions": " in answer_or_exit\n", "batches": " in main\n"}
"""What the worker's threads are for, and the function by which each is known after a crash."""

MessageT = TypeVar("MessageT", bound=Message)


class WorkerProcess:
    """A process that runs `jitney.backends.process.worker`. Raises BackendCrashed."""

    def __init__(self) -> None:
        try:
            self.process = ChildProcess(
                _MODULE, str(os.getpid()), channel_count=4, keeps_output=True
            )
        except OSError as error:
            raise BackendCrashed(f"The backend process could not be started ({error}).") from error
        channels = map(Channel, self.process.channels)
        self.batches, self.texts, self.constraints, self.prefixes = channels
        self._is_closed = False
        self._was_ended = False
        """Whether it lived until we ended it."""

    def ask(
        self, channel: Channel, question: Message, expected: type[MessageT], limit_s: float | None
    ) -> MessageT:
        """Send one question; its answer, or raise the error that is the answer. Without a limit it
        may take as long as it takes."""
        of = "batches" if channel is self.batches else "questions"
        # If the process ended before, this question is not the cause.
        with self.talking(limit_s, of, was_reached=False):
            channel.send(question, limit_s)
        with self.talking(limit_s, of):
            answer = channel.receive(limit_s)
        return self.checked(answer, expected)

    def checked(self, answer: Message, expected: type[MessageT]) -> MessageT:
        """The answer, if it has this type. Raises the error where the answer is one."""
        if isinstance(answer, Failure):
            raise answer.error()
        if not isinstance(answer, expected):
            self.process.kill()
            raise BackendCrashed("The backend process gave an answer to another question.")
        return answer

    @contextlib.contextmanager
    def talking(
        self, limit_s: float | None, of: str = "batches", *, was_reached: bool = True
    ) -> Iterator[None]:
        """For all sending and receiving of batches or questions: turns errors into BackendCrashed.

        What comes after the end is not its cause, nor is the work of a thread that did not crash.
        """
        try:
            yield
        except TimeoutError as error:
            self.process.kill()
            raise BackendCrashed(
                f"The backend did not answer within {limit_s or 0.0:.3g} seconds, and was ended."
            ) from error
        except MalformedFrame as error:
            self.process.kill()
            raise BackendCrashed(f"The backend process sent a bad frame: {error}") from error
        except ChannelClosed as error:
            crash = self.crash()
            is_cause = not self._was_ended and self._crashed_in() in (of, None)
            crash.was_reached = was_reached and is_cause
            raise crash from error
        except InvalidRequest:
            raise  # nothing was sent
        except BaseException:
            # Interrupted before the answer, which the next question would take for its own.
            self.process.kill()
            raise

    def end(self) -> None:
        """Close its channels, so that it ends, and kill it if it does not."""
        self._was_ended |= not self.process.has_ended
        self.process.end(_GRACE_S)

    def close(self) -> None:
        """End it because it is not needed any more. Waiting calls raise an error that says so."""
        self._is_closed = True
        self.end()

    def _crashed_in(self) -> str | None:
        """What the thread is for that crashed; None if nobody knows, as after a SIGKILL."""
        where = self.process.crashed_stack()
        return next((name for name, function in _THREADS.items() if function in where), None)

    def crash(self) -> BackendCrashed:
        """The error that says how the process ended. Kills it first if it still runs."""
        if self._is_closed:
            return BackendCrashed("The backend is closed.", is_wanted=True)
        self.process.wait_or_kill(_GRACE_S)
        number, last_lines = self.process.signal, self.process.last_lines()
        why = f"; the last it wrote was: {last_lines}" if last_lines else "."
        if number is None:
            return BackendCrashed(
                f"The backend process ended by itself (status {self.process.status}){why}"
            )
        if number == signal.SIGKILL:
            why = "; somebody did that, or the system when memory ran out."
        elif number == signal.SIGILL:
            why = (
                ": an instruction is illegal on this processor; where llama.cpp was compiled here, "
                "`jitney backends --add llamacpp` adds the prebuilt one."
            )
        return BackendCrashed(f"The backend process was killed (signal {number}){why}", number)
