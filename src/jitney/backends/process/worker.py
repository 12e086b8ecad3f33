"""The process of a backend: `... process.worker BATCHES TEXTS CONSTRAINTS PARENT`.

Started by `jitney.backends.process.client`, never by hand, with the numbers of three sockets and
that of its parent. The main thread builds the backend that the first message names and then carries
out batches; a second thread tokenises and a third compiles, so that none waits for another. The
process ends at once when its parent does: its channels then end, and on Linux the kernel kills it
even inside native code.
"""

import os
import signal
import socket
import sys
import threading

from jitney.backends import load
from jitney.backends.process.die_with_parent import die_with_parent
from jitney.backends.process.messages import (
    Channel,
    Done,
    Encode,
    Encoded,
    Execute,
    Executed,
    Failure,
    Hello,
    Message,
    Prepare,
    Ready,
    Reset,
)
from jitney.core.backend import Backend
from jitney.errors import BackendFailed
from jitney.sandbox.frames import ChannelClosed, Frames, MalformedFrame

EXIT_DONE = 0
EXIT_NOT_STARTED = 3
EXIT_MALFORMED = 4


def main(arguments: list[str]) -> int:
    """Serve one parent until it goes; the value is the exit status."""
    *sockets, parent = (int(each) for each in arguments)
    # Ctrl-C and the end of a terminal reach every process in it, and a service manager's wish to
    # end every process of the service: the parent drains first, and needs this one to do so.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not die_with_parent(parent):
        return EXIT_DONE
    batches, texts, constraints = (Channel(Frames(socket.socket(fileno=each))) for each in sockets)
    try:
        backend = _build(batches)
        if backend is None:
            return EXIT_NOT_STARTED
        for name, channel in (("texts", texts), ("constraints", constraints)):
            threading.Thread(
                target=_serve_or_exit, args=(channel, backend), name=name, daemon=True
            ).start()
        _serve(batches, backend)
    except ChannelClosed:
        return EXIT_DONE
    except MalformedFrame as error:
        sys.stderr.write(f"the backend process got a bad frame: {error}\n")
        return EXIT_MALFORMED
    return EXIT_DONE


def _build(batches: Channel) -> Backend | None:
    hello = batches.receive()
    if not isinstance(hello, Hello):
        raise MalformedFrame("the first message names no backend.")
    try:
        backend = load(hello.backend, hello.settings)
    except Exception as error:  # Whatever it is, the parent is told and this process ends.
        batches.send(Failure.of(error))
        return None
    batches.send(Ready(backend.traits, backend.vocabulary))
    return backend


def _serve(channel: Channel, backend: Backend) -> None:
    is_in_ruins = False
    while True:
        message = channel.receive()
        try:
            if is_in_ruins and isinstance(message, Execute):
                raise BackendFailed("a batch before this one failed.")
            answer = _answer(message, backend)
        except MalformedFrame:
            raise
        except Exception as error:  # A failed request must not end the process.
            answer = Failure.of(error)
            # The next batch may lie here already, and goes on from what this one did not do.
            is_in_ruins = is_in_ruins or isinstance(message, Execute)
        if isinstance(message, Reset):
            is_in_ruins = isinstance(answer, Failure)
        channel.send(answer)


def _serve_or_exit(channel: Channel, backend: Backend) -> None:
    """Serve until the channel ends, and the process with it: the main thread may be stuck."""
    try:
        _serve(channel, backend)
    except ChannelClosed:
        os._exit(EXIT_DONE)
    except MalformedFrame as error:
        sys.stderr.write(f"the backend process got a bad frame: {error}\n")
        sys.stderr.flush()
        os._exit(EXIT_MALFORMED)


def _answer(message: Message, backend: Backend) -> Message:
    match message:
        case Execute():
            return Executed(backend.execute(message.batch()))
        case Reset():
            backend.reset()
            return Done()
        case Encode(texts):
            return Encoded(tuple(backend.encode(texts)))
        case Prepare(constraint):
            backend.prepare(constraint)
            return Done()
        case Failure() | Hello() | Ready() | Executed() | Encoded() | Done():
            raise MalformedFrame("an answer came where a question was expected.")


if __name__ == "__main__":
    # Native libraries may hang in their clean-up, and nothing here needs one.
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
