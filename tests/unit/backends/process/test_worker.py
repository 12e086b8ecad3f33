"""Batches in the backend's process, with a backend that queues and one that does not."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from jitney.backends.process.messages import (
    Channel,
    Done,
    Encode,
    Execute,
    Executed,
    Failure,
    Reset,
)
from jitney.backends.process.worker import BatchServer
from jitney.core.backend import Segment, Traits, Vocabulary
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint
from jitney.errors import BackendFailed
from jitney.sandbox.frames import ChannelClosed, Frames

WAIT_S = 100.0
SAYS_SO = "A batch before this one failed."


class Plain:
    """Has no model: an outcome has the number of its batch. Negative numbers fail."""

    traits = Traits(name="plain", slots_max=1, kv_tokens=1, model_len_max=1, batch_invariant=True)
    vocabulary = Vocabulary(pieces=(), control=frozenset(), eos_tokens=())

    def __init__(self) -> None:
        self.reached: queue.Queue[int] = queue.Queue()

    def execute(self, batch: Batch) -> Outcome:
        self.reached.put(batch.number)
        if batch.number < 0:
            raise BackendFailed("it is negative.")
        return Outcome(batch.number, (), 0.0)

    def reset(self) -> None:
        self.reached.put(0)

    def check(self) -> None:
        raise NotImplementedError

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        raise NotImplementedError

    def prepare(self, constraint: Constraint) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Queueing(Plain):
    """Computes each batch when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Semaphore(0)
        self._batches: list[Batch] = []

    def send(self, batch: Batch) -> None:
        self.reached.put(batch.number)
        if batch.number == -1:
            raise BackendFailed("it is not taken.")
        self._batches.append(batch)

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        if not self.may_end.acquire(timeout=limit_s):
            return None
        batch = self._batches.pop(0)
        if batch.number < 0:
            self._batches.clear()
            raise BackendFailed("it is negative.")
        return Outcome(batch.number, (), 0.0)


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
            BatchServer(far, backend).serve()

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


def test_a_second_batch_reaches_the_backend_while_the_first_runs() -> None:
    """Guards the device: it must not stand still between two batches."""
    backend = Queueing()
    with serving(backend) as channel:
        send(channel, 1)
        assert backend.reached.get(timeout=WAIT_S) == 1
        send(channel, 2)
        assert backend.reached.get(timeout=WAIT_S) == 2
        with pytest.raises(TimeoutError):
            channel.receive(0.01)
        backend.may_end.release(2)
        assert received(channel, 2) == [1, 2]


def test_what_is_queued_behind_a_failure_is_lost_with_it() -> None:
    """Guards whoever comes after: each batch goes on from what the one before it did."""
    backend = Queueing()
    with serving(backend) as channel:
        send(channel, -5, 6)
        assert [backend.reached.get(timeout=WAIT_S) for _ in range(2)] == [-5, 6]
        backend.may_end.release()
        assert received(channel, 2) == ["it is negative.", SAYS_SO]
        send(channel, 7)
        assert received(channel, 1) == [SAYS_SO]
        channel.send(Reset())
        assert channel.receive(WAIT_S) == Done()
        send(channel, 8)
        backend.may_end.release()
        assert received(channel, 1) == [8]
    assert list(backend.reached.queue) == [0, 8]


def test_a_batch_that_is_not_taken_fails_after_those_before_it() -> None:
    """Guards the order of answers, by which the engine knows whose they are."""
    backend = Queueing()
    with serving(backend) as channel:
        send(channel, 1, -1)
        backend.may_end.release()
        assert received(channel, 2) == [1, "it is not taken."]


def test_a_reset_waits_for_what_is_under_way() -> None:
    """Guards the same order where nobody wants the outcomes any more."""
    backend = Queueing()
    with serving(backend) as channel:
        send(channel, 1)
        channel.send(Reset())
        backend.may_end.release()
        assert received(channel, 1) == [1]
        assert channel.receive(WAIT_S) == Done()


def test_a_backend_that_cannot_queue_runs_one_batch_after_another() -> None:
    """Guards such a backend, and what lies behind its failure: that never runs, not even later."""
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
