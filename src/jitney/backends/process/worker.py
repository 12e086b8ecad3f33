"""The process of a backend: `python -m jitney.backends.process.worker SOCKET... PARENT`.

Started by `jitney.backends.process.client`, never by hand. The arguments are the numbers of the
sockets for batches, texts, constraints and prefixes, and the id of the parent. The main thread
builds the backend that the first message names, and then runs batches. A second thread tokenises, a
third compiles, and a fourth reads prefixes from the disk, so that none waits for another. The
process ends when its parent does: its channels are closed then, and on Linux the kernel kills it
even inside native code. If native code crashes, the parent is told in which thread
(`WorkerProcess`).
"""

import faulthandler
import gc
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from jitney.backends.kinds import load
from jitney.backends.process import messages
from jitney.backends.process.messages import Channel, Failure, Message
from jitney.core.backend import Backend, QueueingBackend, StoringBackend
from jitney.errors import BackendCrashed, BackendFailed
from jitney.sandbox.die_with_parent import die_with_parent, ignore_stop_signals
from jitney.sandbox.frames import ChannelClosed, Frames, MalformedFrame

EXIT_DONE = 0
EXIT_NOT_STARTED = 3
EXIT_MALFORMED = 4
EXIT_LOST = 5

GARBAGE_COUNT = 5000
"""So many new objects between two looks for cycles."""

POLL_S = 2e-4
"""How long a backend that has a batch is waited for before the channel is looked at again."""


def main(arguments: list[str]) -> int:
    """Serve one parent until it ends; the value is the exit status."""
    *sockets, parent = (int(each) for each in arguments)
    ignore_stop_signals()
    faulthandler.enable(all_threads=False)
    if not die_with_parent(parent):
        return EXIT_DONE
    channels = [Channel(Frames(socket.socket(fileno=each))) for each in sockets]
    return _until_closed(lambda: _serve(*channels))


def _until_closed(serve: Callable[[], int]) -> int:
    """Serve; the exit status when a channel is closed or a frame is damaged."""
    try:
        return serve()
    except ChannelClosed:
        return EXIT_DONE
    except MalformedFrame as error:
        sys.stderr.write(f"The backend process got a bad frame: {error}\n")
        sys.stderr.flush()
        return EXIT_MALFORMED
    except BackendCrashed as error:
        # A GPU cannot be used again by a process in which one of its kernels failed.
        sys.stderr.write(f"The backend is lost: {error}\n")
        sys.stderr.flush()
        return EXIT_LOST


def _serve(batches: Channel, texts: Channel, constraints: Channel, prefixes: Channel) -> int:
    hello = batches.receive()
    if not isinstance(hello, messages.Hello):
        raise MalformedFrame("The first message names no backend.")
    try:
        backend = load(hello.backend, hello.settings, hello.prefixes)
    except Exception as error:  # The parent gets any error, and this process ends.
        batches.send(Failure.of(error, "backend"))
        return EXIT_NOT_STARTED
    _freeze_garbage()
    batches.send(messages.Ready(backend.traits, backend.vocabulary))

    def answer_or_exit(channel: Channel) -> NoReturn:
        # The main thread may be stuck in native code.
        os._exit(_until_closed(BackendServer(channel, backend).serve))

    others = {"texts": texts, "constraints": constraints, "prefixes": prefixes}
    for name, channel in others.items():
        threading.Thread(target=answer_or_exit, args=(channel,), name=name, daemon=True).start()
    server = QueueServer if isinstance(backend, QueueingBackend) else BackendServer
    server(batches, backend).serve()


def _freeze_garbage() -> None:
    """Look for cycles less often, and never among the objects of libraries: with a large one that
    would take as long as ten passes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_COUNT, *gc.get_threshold()[1:])


class BackendServer:
    """Answers the messages of one channel in order, batches among them.

    After a batch has failed, later ones are refused until a reset, because each continues the work
    of the one before.
    """

    def __init__(self, channel: Channel, backend: Backend) -> None:
        self._channel = channel
        self._backend = backend
        self._has_failed = False

    def serve(self) -> NoReturn:
        """Serve until the channel is closed. Raises ChannelClosed or MalformedFrame."""
        while True:
            self._channel.send(self._answer(self._channel.receive()))

    def _answer(self, message: Message) -> Message:
        """The answer to a message. An error is an answer, too, but for a bad frame."""
        try:
            match message:
                case messages.Execute():
                    batch = message.batch()
                    if self._has_failed:
                        raise BackendFailed("A batch before this one failed.")
                    self._has_failed = True  # unless the batch succeeds
                    outcome = self._backend.execute(batch)
                    self._has_failed = False
                    return messages.Executed(outcome)
                case messages.Reset():
                    self._has_failed = True  # unless the reset succeeds
                    self._backend.reset()
                    self._has_failed = False
                    return messages.Done()
                case messages.Encode(texts):
                    # A chat template repeats the same texts between messages.
                    known = {each: tuple(self._backend.encode((each,))) for each in set(texts)}
                    return messages.Encoded(tuple([known[each] for each in texts]))
                case messages.Prepare(constraint):
                    self._backend.prepare(constraint)
                    return messages.Done()
                case messages.Look(asked) if isinstance(self._backend, StoringBackend):
                    return messages.Looked(self._backend.fetch(asked))
        except (MalformedFrame, BackendCrashed):
            raise
        except BaseException as error:  # A panic of a library in Rust is no Exception.
            return Failure.of(error, "backend")
        raise MalformedFrame("An answer came where a question was expected.")


class QueueServer(BackendServer):
    """The same for a backend that takes a batch while another one runs.

    A batch is handed over as soon as its message is there. Outcomes go back in the order of their
    batches, and every other message waits until there are none.
    """

    def __init__(self, channel: Channel, backend: Backend) -> None:
        super().__init__(channel, backend)
        assert isinstance(backend, QueueingBackend), "Asked by the caller"
        self._queue: QueueingBackend = backend
        self._waiting: deque[Failure | None] = deque()
        """For each batch whose outcome was not sent: why it was not handed over; None if it was."""
        self._is_lost = False
        """Whether a batch that was handed over failed, and with it those after it."""

    def serve(self) -> NoReturn:
        """Serve until the channel is closed. Raises ChannelClosed or MalformedFrame."""
        while True:
            if self._waiting and not self._channel.is_readable():
                self._answer_oldest(POLL_S)
                continue
            message = self._channel.receive()
            if isinstance(message, messages.Execute):
                self._waiting.append(self._hand_over(message))
                continue
            while self._waiting:
                self._answer_oldest(None)
            self._is_lost = False  # nothing is sent after a failure but a reset
            self._channel.send(self._answer(message))

    def _hand_over(self, message: messages.Execute) -> Failure | None:
        try:
            if self._has_failed:
                raise BackendFailed("A batch before this one failed.")
            self._queue.send(message.batch())
        except (MalformedFrame, BackendCrashed):
            raise
        except BaseException as error:  # As in `_answer`.
            self._has_failed = True
            return Failure.of(error, "backend")
        return None

    def _answer_oldest(self, limit_s: float | None) -> None:
        """Send the outcome of the oldest batch, if it comes within the limit."""
        answer: Message | None = self._waiting[0]
        if answer is None and self._is_lost:
            answer = Failure.of(BackendFailed("A batch before this one failed."), "backend")
        if answer is None:
            try:
                outcome = self._queue.receive(limit_s)
            except BackendCrashed:
                raise
            except BaseException as error:  # As in `_answer`.
                self._has_failed = self._is_lost = True
                answer = Failure.of(error, "backend")
            else:
                if outcome is None:
                    return
                answer = messages.Executed(outcome)
        self._waiting.popleft()
        self._channel.send(answer)


if __name__ == "__main__":
    # Native libraries may hang in their clean-up, and nothing here needs it.
    os._exit(main(sys.argv[1:]))
