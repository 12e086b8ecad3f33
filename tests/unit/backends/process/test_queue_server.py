"""The worker with a backend that takes a batch while another one runs."""

import socket
import threading
from collections import deque

import pytest

from jitney.backends.process.messages import (
    Channel,
    Execute,
    Executed,
    Failure,
    Message,
    Reset,
)
from jitney.backends.process.worker import QueueServer
from jitney.core.batch import Batch, Outcome
from jitney.errors import BackendFailed
from jitney.sandbox.frames import ChannelClosed, Frames

WAIT_S = 100.0


class Queueing:
    """Has an outcome only once the next batch was sent, or when it is reset."""

    def __init__(self) -> None:
        self.sent: deque[int] = deque()
        self.refused = -1
        self.failing = -1

    def send(self, batch: Batch) -> None:
        if batch.number == self.refused:
            raise BackendFailed("does not fit")
        self.sent.append(batch.number)

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        if len(self.sent) < 2 and limit_s is not None:
            threading.Event().wait(limit_s)
            return None
        number = self.sent.popleft()
        if number == self.failing:
            raise BackendFailed("broke")
        return Outcome(number, (), 0.0)

    def reset(self) -> None:
        self.sent.clear()


def _numbers(backend: Queueing, messages: list[Message], answers: int) -> list[int | str]:
    """The numbers of the outcomes, or the words of the failures, for these messages."""
    here, there = (Channel(Frames(end)) for end in socket.socketpair())

    def serve() -> None:
        with pytest.raises(ChannelClosed):
            QueueServer(there, backend).serve()  # type: ignore[arg-type]

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    for message in messages:
        here.send(message, WAIT_S)
    found: list[int | str] = []
    for _ in range(answers):
        answer = here.receive(WAIT_S)
        if isinstance(answer, Executed):
            found.append(answer.outcome.number)
        else:
            found.append(str(answer.error()) if isinstance(answer, Failure) else "done")
    here.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    there.close()
    return found


def _batches(*numbers: int) -> list[Message]:
    return [Execute.of(Batch(number, (), ())) for number in numbers]


def test_a_batch_is_handed_over_before_the_last_one_has_ended() -> None:
    """Otherwise a GPU would wait for every answer to be sent and every message to be read."""
    assert _numbers(Queueing(), [*_batches(1, 2, 3), Reset()], 4) == [1, 2, 3, "done"]


def test_a_batch_that_does_not_fit_is_answered_in_its_turn() -> None:
    """The one before it is well, and those after it are refused until a reset."""
    backend = Queueing()
    backend.refused = 2
    found = _numbers(backend, [*_batches(1, 2, 3), Reset(), *_batches(4), Reset()], 6)
    assert found == [1, "does not fit", "A batch before this one failed.", "done", 4, "done"]


def test_after_a_failure_those_behind_it_have_no_outcome() -> None:
    """Each continues the work of the one before."""
    backend = Queueing()
    backend.failing = 1
    found = _numbers(backend, [*_batches(1, 2), Reset()], 3)
    assert found == ["broke", "A batch before this one failed.", "done"]
