"""Batches in the backend's process: their order, and what follows a failure."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator, Sequence

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.backends.process.messages import (
    Channel,
    Done,
    Encode,
    Execute,
    Executed,
    Failure,
    Reset,
)
from jitney.backends.process.worker import BackendServer
from jitney.core.backend import Segment
from jitney.core.batch import Batch, Outcome
from jitney.errors import BackendFailed
from jitney.sandbox.frames import ChannelClosed, Frames

WAIT_S = 100.0
SAYS_SO = "A batch before this one failed."


class Plain(FakeBackend):
    """Computes nothing: an outcome has the number of its batch. Negative numbers fail."""

    def __init__(self) -> None:
        super().__init__(FakeSettings())
        self.reached: queue.Queue[int] = queue.Queue()

    def execute(self, batch: Batch) -> Outcome:
        self.reached.put(batch.number)
        if batch.number < 0:
            raise BackendFailed("it is negative.")
        return Outcome(batch.number, (), 0.0)

    def reset(self) -> None:
        self.reached.put(0)


class Panic(BaseException):
    """As libraries of Rust raise it: no Exception."""


class Panicking(Plain):
    """Its tokenizer panics."""

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        raise Panic("no such token")


@contextlib.contextmanager
def serving(backend: Plain) -> Iterator[Channel]:
    """The engine's end of the channel for batches."""
    near, far = (Channel(Frames(end)) for end in socket.socketpair())

    def serve() -> None:
        with contextlib.suppress(ChannelClosed):
            BackendServer(far, backend).serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield near
    finally:
        near.close()
        thread.join(WAIT_S)
        far.close()


def send(channel: Channel, *numbers: int) -> None:
    for number in numbers:
        channel.send(Execute.of(Batch(number, (), ())), WAIT_S)


def received(channel: Channel, count: int) -> list[int | str]:
    """For each answer the number of its batch, or the text of its failure."""
    found: list[int | str] = []
    for _ in range(count):
        answer = channel.receive(WAIT_S)
        assert isinstance(answer, Executed | Failure)
        found.append(answer.text if isinstance(answer, Failure) else answer.outcome.number)
    return found


def test_batches_run_one_after_another_and_none_behind_a_failure() -> None:
    """Guards whoever comes after a failure: each batch continues what the one before it did."""
    backend = Plain()
    with serving(backend) as channel:
        send(channel, 1, 2)
        assert received(channel, 2) == [1, 2]
        send(channel, -3, 4)
        assert received(channel, 2) == ["it is negative.", SAYS_SO]
        channel.send(Reset())
        assert channel.receive(WAIT_S) == Done()
        send(channel, 5)
        assert received(channel, 1) == [5]
    assert list(backend.reached.queue) == [1, 2, -3, 0, 5]


def test_a_panic_of_the_tokenizer_is_an_answer() -> None:
    """Guards the thread that tokenises: it would end, and every next text wait for a minute."""
    with serving(Panicking()) as channel:
        channel.send(Encode((("x", False),)), WAIT_S)
        answer = channel.receive(WAIT_S)
        assert isinstance(answer, Failure)
        assert "Panic: no such token" in answer.text
        send(channel, 1)
        assert received(channel, 1) == [1]
